"""The fixed fields of the frames; `_frames` and `_sink_frames` say what they are."""

from struct import Struct

HEADER = Struct("<IB3xI")
U16 = Struct("<H")
HANDLE = Struct("<I")

HELLO = Struct("<4sHH")
WELCOME = Struct("<HHI")
ATTACH = Struct("<Q16sdBBBB")
ATTACHED = Struct("<IIQQQQ16s")
HEAD_IS = Struct("<QQQQ")
FETCH = Struct("<IIQQ")
RECORDS = Struct("<QII")
ACK = Struct("<IIQ")
ACKED = Struct("<QQ")
REACH = Struct("<IIQQ")
REACHED = Struct("<Q")

OPEN = Struct("<Q16sB7xH")
OPENED = Struct("<Q16sqII")
STAGE = Struct("<qIIQQ")
STAGE_END = Struct("<qIIQQQ")
STAGED = Struct("<QII")
COMMIT = Struct("<qII")
PART = Struct("<QII")
COMMITTED = Struct("<qII")
BATCH = Struct("<q")
