import com.hivemq.embedded.EmbeddedExtension;
import com.hivemq.embedded.EmbeddedHiveMQ;
import com.hivemq.extension.sdk.api.ExtensionMain;
import com.hivemq.extension.sdk.api.auth.SimpleAuthenticator;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartOutput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopOutput;
import com.hivemq.extension.sdk.api.services.Services;
import java.nio.file.Path;

/** HiveMQ CE, which lets nobody in without an extension that says who may: this one lets all in. */
class HiveMQ {
    static class Everybody implements ExtensionMain {
        public void extensionStart(ExtensionStartInput input, ExtensionStartOutput output) {
            SimpleAuthenticator welcome = (client, answer) -> answer.authenticateSuccessfully();
            Services.securityRegistry().setAuthenticatorProvider(provider -> welcome);
        }

        public void extensionStop(ExtensionStopInput input, ExtensionStopOutput output) {}
    }

    public static void main(String[] folders) {
        EmbeddedExtension everybody =
                EmbeddedExtension.builder()
                        .withId("everybody")
                        .withName("everybody")
                        .withVersion("1")
                        .withAuthor("clearfunds")
                        .withPriority(0)
                        .withStartPriority(1000)
                        .withExtensionMain(new Everybody())
                        .build();
        Path folder = Path.of(folders[0]);
        EmbeddedHiveMQ server =
                EmbeddedHiveMQ.builder()
                        .withConfigurationFolder(folder.resolve("conf"))
                        .withDataFolder(folder.resolve("data"))
                        .withExtensionsFolder(folder.resolve("extensions"))
                        .withEmbeddedExtension(everybody)
                        .build();
        server.start().join();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> server.stop().join()));
    }
}
