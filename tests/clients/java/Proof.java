import com.hivemq.client.mqtt.datatypes.MqttUtf8String;
import com.hivemq.client.mqtt.mqtt5.Mqtt5ClientConfig;
import com.hivemq.client.mqtt.mqtt5.auth.Mqtt5EnhancedAuthMechanism;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5Auth;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5AuthBuilder;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5EnhancedAuthBuilder;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAck;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5Disconnect;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import javax.crypto.Mac;
import javax.crypto.SecretKeyFactory;
import javax.crypto.spec.PBEKeySpec;
import javax.crypto.spec.SecretKeySpec;

/** SCRAM-SHA-256 (RFC 5802, 7677), for which the client has hooks: once, without channel binding. */
class Proof implements Mqtt5EnhancedAuthMechanism {
    private final String password;
    private final String first;
    private String expected;

    Proof(String user, String password) {
        this.password = password;
        this.first = "n=" + user + ",r=" + UUID.randomUUID();
    }

    @Override
    public MqttUtf8String getMethod() {
        return MqttUtf8String.of("SCRAM-SHA-256");
    }

    @Override
    public int getTimeout() {
        return 60;
    }

    @Override
    public CompletableFuture<Void> onAuth(Mqtt5ClientConfig config, Mqtt5Connect connect, Mqtt5EnhancedAuthBuilder said) {
        said.data(("n,," + first).getBytes(StandardCharsets.UTF_8));
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Boolean> onContinue(Mqtt5ClientConfig config, Mqtt5Auth asked, Mqtt5AuthBuilder said) {
        try {
            said.data(answer(text(asked.getData().get())).getBytes(StandardCharsets.UTF_8));
            return CompletableFuture.completedFuture(true);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    private String answer(String challenge) throws GeneralSecurityException {
        String[] fields = challenge.split(",");
        byte[] salt = Base64.getDecoder().decode(fields[1].substring(2));
        int iterations = Integer.parseInt(fields[2].substring(2));
        byte[] salted = SecretKeyFactory.getInstance("PBKDF2WithHmacSHA256")
            .generateSecret(new PBEKeySpec(password.toCharArray(), salt, iterations, 256))
            .getEncoded();
        String last = "c=biws," + fields[0];
        String all = first + "," + challenge + "," + last;
        byte[] key = hmac(salted, "Client Key");
        byte[] proof = hmac(MessageDigest.getInstance("SHA-256").digest(key), all);
        for (int i = 0; i < proof.length; i++) {
            proof[i] ^= key[i];
        }
        expected = "v=" + Base64.getEncoder().encodeToString(hmac(hmac(salted, "Server Key"), all));
        return last + ",p=" + Base64.getEncoder().encodeToString(proof);
    }

    private static byte[] hmac(byte[] key, String text) throws GeneralSecurityException {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(ByteBuffer data) {
        return StandardCharsets.UTF_8.decode(data).toString();
    }

    @Override
    public CompletableFuture<Boolean> onAuthSuccess(Mqtt5ClientConfig config, Mqtt5ConnAck answer) {
        String said = text(answer.getEnhancedAuth().get().getData().get());
        return CompletableFuture.completedFuture(said.equals(expected));
    }

    @Override
    public CompletableFuture<Void> onReAuth(Mqtt5ClientConfig config, Mqtt5AuthBuilder said) {
        throw new UnsupportedOperationException();
    }

    @Override
    public CompletableFuture<Boolean> onReAuthSuccess(Mqtt5ClientConfig config, Mqtt5Auth answer) {
        throw new UnsupportedOperationException();
    }

    @Override
    public void onAuthRejected(Mqtt5ClientConfig config, Mqtt5ConnAck answer) {}

    @Override
    public void onReAuthRejected(Mqtt5ClientConfig config, Mqtt5Disconnect answer) {}

    @Override
    public void onAuthError(Mqtt5ClientConfig config, Throwable cause) {}

    @Override
    public void onReAuthError(Mqtt5ClientConfig config, Throwable cause) {}
}
