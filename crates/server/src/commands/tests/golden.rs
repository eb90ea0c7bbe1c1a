//! Every command's replies, byte for byte (`|` is a line end), in RESP2, and in RESP3 where they differ.

use super::fake::Fake;
use leeward_format::cluster::{Acknowledge, ClusterPath, TableOptions, encode_value};
use leeward_format::op::OpError;
use leeward_format::table::DEFAULT_TABLE;
use leeward_format::{Epoch, ErrorKind, RegionId};

/// Runs commands in order on one connection; each must answer as expected.
#[track_caller]
pub(super) fn check(fake: &mut Fake, expected: &[(&str, &str)]) {
    for (line, reply) in expected {
        assert_eq!(fake.run(line), *reply, "{line}");
    }
}

fn fake() -> Fake {
    Fake::new(&["g", "p"])
}

#[test]
fn strings() {
    check(
        &mut fake(),
        &[
            ("GET a", "$-1|"),
            ("SET a 1", "+OK|"),
            ("get a", "$1|1|"),
            ("SET a \"\"", "+OK|"),
            ("GET a", "$0||"),
            ("STRLEN a", ":0|"),
            ("STRLEN none", ":0|"),
            ("APPEND a xyz", ":3|"),
            ("STRLEN a", ":3|"),
            ("TYPE a", "+string|"),
            ("TYPE none", "+none|"),
            ("GETDEL a", "$3|xyz|"),
            ("GETDEL a", "$-1|"),
            ("SETNX a 5", ":1|"),
            ("SETNX a 6", ":0|"),
            ("GET a", "$1|5|"),
        ],
    );
}

/// It is second 1000; what is written in it is read 4.4 s later.
#[test]
fn expiry() {
    let mut fake = fake();
    check(
        &mut fake,
        &[
            ("SET a 1 EX 10", "+OK|"),
            ("SET b 1 PX 4400", "+OK|"),
            ("SET c 1 EXAT 1010", "+OK|"),
            ("SET d 1 PXAT 1004401", "+OK|"),
            ("SETEX e 4 1", "+OK|"),
            ("PSETEX f 10000 1", "+OK|"),
            ("SET g 1", "+OK|"),
            ("TTL a", ":10|"),
            ("TTL g", ":-1|"),
            ("PTTL g", ":-1|"),
            ("TTL none", ":-2|"),
            ("PEXPIRETIME none", ":-2|"),
            ("PEXPIRETIME a", ":1010000|"),
        ],
    );
    fake.node.wall = leeward_format::UnixMs(1_004_400);
    check(
        &mut fake,
        &[
            ("PTTL a", ":5600|"),
            ("TTL a", ":6|"),
            ("GET b", "$-1|"),
            ("TTL b", ":-2|"),
            ("EXPIRETIME c", ":1010|"),
            ("PTTL d", ":1|"),
            ("TTL d", ":0|"),
            ("EXISTS a b c d e f", ":4|"),
            ("INCR a", ":2|"),
            ("PTTL a", ":5600|"),
            ("APPEND a 0", ":2|"),
            ("PTTL a", ":5600|"),
            ("SET a 3 KEEPTTL", "+OK|"),
            ("PTTL a", ":5600|"),
            ("SET a 4", "+OK|"),
            ("PTTL a", ":-1|"),
            ("PERSIST a", ":0|"),
            ("PERSIST f", ":1|"),
            ("PERSIST f", ":0|"),
            ("PERSIST none", ":0|"),
            ("TTL f", ":-1|"),
            ("INCR b", ":1|"),
            ("TTL b", ":-1|"),
            ("SETNX d 1", ":0|"),
            ("DEL e", ":0|"),
            ("SET a 1 EX 0", "-ERR invalid expire time in 'set' command|"),
            ("SET a 1 PX -1", "-ERR invalid expire time in 'set' command|"),
            ("SET a 1 EX 9223372036854775807", "-ERR invalid expire time in 'set' command|"),
            ("SET a 1 EX ten", "-ERR value is not an integer or out of range|"),
            ("SET a 1 EX", "-ERR syntax error|"),
            ("SET a 1 EX 1 PX 1", "-ERR syntax error|"),
            ("SET a 1 EX 1 KEEPTTL", "-ERR syntax error|"),
            ("SETEX a 0 1", "-ERR invalid expire time in 'setex' command|"),
            ("PSETEX a -5 1", "-ERR invalid expire time in 'psetex' command|"),
            ("GET a", "$1|4|"),
        ],
    );
}

#[test]
fn changes_of_expiry() {
    check(
        &mut fake(),
        &[
            ("SET a 1", "+OK|"),
            ("EXPIRE none 10", ":0|"),
            ("EXPIRE a 10 XX", ":0|"),
            ("EXPIRE a 10 GT", ":0|"),
            ("EXPIRE a 10 LT", ":1|"),
            ("EXPIRE a 10 NX", ":0|"),
            ("EXPIRE a 10 GT", ":0|"),
            ("EXPIRE a 20 gt", ":1|"),
            ("EXPIRE a 30 LT", ":0|"),
            ("EXPIRE a 30 XX", ":1|"),
            ("EXPIRE a 20 XX LT", ":1|"),
            ("TTL a", ":20|"),
            ("PEXPIRE a 1500", ":1|"),
            ("PTTL a", ":1500|"),
            ("EXPIREAT a 2000", ":1|"),
            ("EXPIRETIME a", ":2000|"),
            ("PEXPIREAT a 2000001", ":1|"),
            ("PEXPIRETIME a", ":2000001|"),
            ("EXPIRE a 10 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible|"),
            ("EXPIRE a 10 GT LT", "-ERR GT and LT options at the same time are not compatible|"),
            ("EXPIRE a 10 FOO", "-ERR Unsupported option FOO|"),
            ("EXPIRE a x", "-ERR value is not an integer or out of range|"),
            ("EXPIRE a 9223372036854775807", "-ERR invalid expire time in 'expire' command|"),
            ("PEXPIREAT a 9223372036854775807", "-ERR invalid expire time in 'pexpireat' command|"),
            ("GETEX a", "$1|1|"),
            ("PEXPIRETIME a", ":2000001|"),
            ("GETEX a EX 5", "$1|1|"),
            ("PTTL a", ":5000|"),
            ("GETEX a PERSIST", "$1|1|"),
            ("PTTL a", ":-1|"),
            ("GETEX none EX 5", "$-1|"),
            ("GETEX a EX", "-ERR syntax error|"),
            ("GETEX a FOO 5", "-ERR syntax error|"),
            ("GETEX a EX 0", "-ERR invalid expire time in 'getex' command|"),
            ("GETEX a EXAT 999", "$1|1|"),
            ("GET a", "$-1|"),
            ("SET a 1", "+OK|"),
            ("EXPIRE a -1", ":1|"),
            ("EXISTS a", ":0|"),
            ("SET a 1", "+OK|"),
            ("EXPIREAT a 0", ":1|"),
            ("EXISTS a", ":0|"),
            ("SET a 1 EXAT 999", "+OK|"),
            ("EXISTS a", ":0|"),
        ],
    );
}

#[test]
fn set_with_conditions() {
    check(
        &mut fake(),
        &[
            ("SET a 1 XX", "$-1|"),
            ("SET a 1 NX", "+OK|"),
            ("SET a 2 nx", "$-1|"),
            ("SET a 2 XX", "+OK|"),
            ("SET a 3 GET", "$1|2|"),
            ("SET a 4 NX GET", "$1|3|"),
            ("GET a", "$1|3|"),
            ("SET b 1 GET NX", "$-1|"),
            ("GET b", "$1|1|"),
            ("SET a 1 NX XX", "-ERR syntax error|"),
            ("SET a 1 NX NX", "$-1|"),
            ("SET a 1 FOO", "-ERR syntax error|"),
            ("SET a 2 IFEQ 2", "$-1|"),
            ("SET a 2 IFEQ 3", "+OK|"),
            ("SET a 9 IFEQ 3 GET", "$1|2|"),
            ("SET a 9 IFNE 2", "$-1|"),
            ("SET a 3 IFNE 9 GET", "$1|2|"),
            ("SET none 1 IFEQ 1", "$-1|"),
            ("SET none 1 IFNE 1", "+OK|"),
            ("SET a 1 IFEQ", "-ERR syntax error|"),
            ("SET a 1 IFEQ 1 NX", "-ERR syntax error|"),
            ("DELEX a IFEQ 4", ":0|"),
            ("DELEX a IFNE 3", ":0|"),
            ("DELEX a IFEQ 3", ":1|"),
            ("DELEX a IFNE 3", ":0|"),
            ("DELEX none", ":1|"),
            ("DELEX none", ":0|"),
            ("DELEX a IFXX 3", "-ERR Invalid condition. Use IFEQ or IFNE|"),
            ("DELEX a IFEQ", "-ERR wrong number of arguments for 'delex' command|"),
        ],
    );
}

#[test]
fn integers() {
    check(
        &mut fake(),
        &[
            ("INCR n", ":1|"),
            ("INCRBY n 41", ":42|"),
            ("DECR n", ":41|"),
            ("DECRBY n 50", ":-9|"),
            ("INCRBY n x", "-ERR value is not an integer or out of range|"),
            ("INCRBY n 01", "-ERR value is not an integer or out of range|"),
            ("DECRBY n -9223372036854775808", "-ERR decrement would overflow|"),
            ("SET n 9223372036854775807", "+OK|"),
            ("INCR n", "-ERR increment or decrement would overflow|"),
            ("SET n abc", "+OK|"),
            ("INCR n", "-ERR value is not an integer or out of range|"),
        ],
    );
}

#[test]
fn several_keys_in_several_regions() {
    check(
        &mut fake(),
        &[
            ("MSET a 1 h 2 z 3", "+OK|"),
            ("MSET a 1 h", "-ERR wrong number of arguments for 'mset' command|"),
            ("MGET z nope a h", "*4|$1|3|$-1|$1|1|$1|2|"),
            ("EXISTS a a nope z", ":3|"),
            ("DBSIZE", ":3|"),
            ("DEL a nope h", ":2|"),
            ("UNLINK z z", ":1|"),
            ("DBSIZE", ":0|"),
        ],
    );
}

#[test]
fn ranges_are_deleted_region_by_region() {
    check(
        &mut fake(),
        &[
            ("MSET a 1 b 2 g 3 h 4 p 5 q 6", "+OK|"),
            ("KDELRANGE b h", "+OK|"),
            ("KRANGE - + KEYS", "*4|$1|a|$1|h|$1|p|$1|q|"),
            ("KDELRANGE c d", "+OK|"),
            ("KDELRANGE q +", "+OK|"),
            ("KDELRANGE - b", "+OK|"),
            ("KRANGE - + KEYS", "*2|$1|h|$1|p|"),
            ("KDELRANGE p h", r#"-ERR empty or reversed range: from \"p\" to \"h\"|"#),
            ("KDELRANGE p p", r#"-ERR empty or reversed range: from \"p\" to \"p\"|"#),
            ("KDELRANGE p", "-ERR wrong number of arguments for 'kdelrange' command|"),
            ("KDELRANGE - +", "+OK|"),
            ("KEYS *", "*0|"),
        ],
    );
}

#[test]
fn ranges_cross_regions_in_both_directions() {
    let mut fake = fake();
    check(
        &mut fake,
        &[
            ("MSET a 1 b 2 g 3 h 4 p 5 q 6", "+OK|"),
            ("KRANGE a h", "*6|$1|a|$1|1|$1|b|$1|2|$1|g|$1|3|"),
            ("KRANGE - + KEYS", "*6|$1|a|$1|b|$1|g|$1|h|$1|p|$1|q|"),
            ("KRANGE \"\" \"\" KEYS", "*6|$1|a|$1|b|$1|g|$1|h|$1|p|$1|q|"),
            ("KRANGE a z REV KEYS", "*6|$1|q|$1|p|$1|h|$1|g|$1|b|$1|a|"),
            ("KRANGE b q rev limit 3 keys", "*3|$1|p|$1|h|$1|g|"),
            ("KRANGE - + LIMIT 4 KEYS", "*4|$1|a|$1|b|$1|g|$1|h|"),
            ("KRANGE - + LIMIT 0", "*0|"),
            ("KRANGE h a", "*0|"),
            ("KRANGE a a", "*0|"),
            ("KRANGE a z LIMIT", "-ERR syntax error|"),
            ("KRANGE a z LIMIT -1", "-ERR LIMIT must be an integer of at least 0|"),
            ("KRANGE a z SIDEWAYS", "-ERR syntax error|"),
            ("MSET user:1 x user:2 y userx z", "+OK|"),
            ("KPREFIX user:", "*4|$6|user:1|$1|x|$6|user:2|$1|y|"),
            ("KPREFIX user: REV LIMIT 1", "*2|$6|user:2|$1|y|"),
            ("KPREFIX nope", "*0|"),
            ("KEYS *", "*9|$1|a|$1|b|$1|g|$1|h|$1|p|$1|q|$6|user:1|$6|user:2|$5|userx|"),
            ("KEYS user:*", "*2|$6|user:1|$6|user:2|"),
            ("KEYS [ab]", "*2|$1|a|$1|b|"),
            ("KEYS a", "*1|$1|a|"),
        ],
    );
    check(&mut fake, &[("HELLO 3", HELLO_3), ("KRANGE a g", "*2|*2|$1|a|$1|1|*2|$1|b|$1|2|")]);
}

#[test]
fn scan_goes_on_from_its_cursor() {
    let mut fake = fake();
    check(&mut fake, &[("MSET a 1 b 2 g 3 h 4 p 5 q 6", "+OK|")]);
    let mut cursor = "0".to_owned();
    let mut seen = Vec::new();
    loop {
        let reply = fake.run(&format!("SCAN {cursor} COUNT 2"));
        let fields: Vec<&str> = reply.split('|').collect();
        assert_eq!(fields[0], "*2");
        cursor = fields[2].to_owned();
        seen.extend(fields[4..].chunks(2).filter(|pair| pair.len() == 2).map(|pair| pair[1].to_owned()));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen, ["a", "b", "g", "h", "p", "q"]);
    check(
        &mut fake,
        &[
            ("SCAN 0 COUNT 100", "*2|$1|0|*6|$1|a|$1|b|$1|g|$1|h|$1|p|$1|q|"),
            ("SCAN 0 MATCH h*", "*2|$1|0|*1|$1|h|"),
            ("SCAN 0 MATCH nope*", "*2|$1|0|*0|"),
            ("SCAN 0 TYPE string COUNT 1000 MATCH [aq]", "*2|$1|0|*2|$1|a|$1|q|"),
            ("SCAN 0 TYPE hash", "*2|$1|0|*0|"),
            ("SCAN 0 COUNT 0", "-ERR syntax error|"),
            ("SCAN 0 COUNT x", "-ERR value is not an integer or out of range|"),
            ("SCAN 0 MATCH", "-ERR syntax error|"),
            ("SCAN 0 NOVALUES 1", "-ERR syntax error|"),
            ("SCAN x", "-ERR invalid cursor|"),
            (
                "SCAN 12345",
                "-ERR this cursor is unknown to this node, or of another table (cursors end when the node restarts): start again at 0|",
            ),
        ],
    );
}

const HELLO_2: &str = "*14|$6|server|$7|leeward|$7|version|$5|0.1.0|$5|proto|:2|$2|id|:7|$4|mode|$10|standalone|\
                       $4|role|$6|master|$7|modules|*0|";
const HELLO_3: &str = "%7|$6|server|$7|leeward|$7|version|$5|0.1.0|$5|proto|:3|$2|id|:7|$4|mode|$10|standalone|\
                       $4|role|$6|master|$7|modules|*0|";

#[test]
fn the_connection() {
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.|";
    let no_users = "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                    configuration is correct?|";
    check(
        &mut fake(),
        &[
            ("PING", "+PONG|"),
            ("PING hey", "$3|hey|"),
            ("PING a b", "-ERR wrong number of arguments for 'ping' command|"),
            ("ECHO hey", "$3|hey|"),
            ("SELECT 0", "+OK|"),
            ("SELECT 1", "-ERR DB index is out of range|"),
            ("SELECT x", "-ERR there is no table x; `leeward table list` shows those there are|"),
            ("AUTH secret", no_users),
            ("AUTH user secret", wrong),
            ("AUTH a b c", "-ERR syntax error|"),
            ("HELLO", HELLO_2),
            ("HELLO 2", HELLO_2),
            ("HELLO 4", "-NOPROTO unsupported protocol version|"),
            ("HELLO x", "-ERR Protocol version is not an integer or out of range|"),
            ("HELLO 3 AUTH user secret", wrong),
            ("HELLO 3 WHAT", "-ERR Syntax error in HELLO option 'WHAT'|"),
            ("GET none", "$-1|"),
            ("HELLO 3 SETNAME me", HELLO_3),
            ("CLIENT GETNAME", "$2|me|"),
            ("GET none", "_|"),
            ("MGET none", "*1|_|"),
            ("SET a 1 XX", "_|"),
            ("RESET", "+RESET|"),
            ("GET none", "$-1|"),
            ("CLIENT GETNAME", "$-1|"),
        ],
    );
}

#[test]
fn clients() {
    let line = "id=7 addr=127.0.0.1:5000 laddr=127.0.0.1:7379 name=me age=0 idle=0 flags=N db=0 sub=0 psub=0 multi=-1 \
                qbuf=0 qbuf-free=0 argv-mem=0 obl=0 oll=0 omem=0 tot-mem=0 \
                cmd=client user=default resp=2 lib-name=tester lib-ver=1.2 table=default\\n";
    let bulk = format!("${}|{line}|", line.len() - 1);
    let mut fake = fake();
    check(
        &mut fake,
        &[
            ("CLIENT ID", ":7|"),
            ("CLIENT SETNAME me", "+OK|"),
            (
                "CLIENT SETNAME \"a b\"",
                "-ERR Client names cannot contain spaces, newlines or special characters, nor be over 256 bytes long.|",
            ),
            ("CLIENT GETNAME", "$2|me|"),
            ("CLIENT SETINFO LIB-NAME tester", "+OK|"),
            ("CLIENT SETINFO lib-ver 1.2", "+OK|"),
            ("CLIENT SETINFO nonsense x", "-ERR Unrecognized option 'nonsense'|"),
            ("CLIENT INFO", &bulk),
            ("CLIENT LIST", &bulk),
            ("CLIENT LIST TYPE normal", &bulk),
            ("CLIENT LIST TYPE replica", "$0||"),
            ("CLIENT LIST TYPE x", "-ERR Unknown client type 'x'|"),
            ("CLIENT LIST ID 7", &bulk),
            ("CLIENT LIST ID 8", "$0||"),
            ("CLIENT LIST ID x", "-ERR Invalid client ID|"),
            ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command|"),
            ("CLIENT KILL 1", "-ERR unknown subcommand 'KILL' of CLIENT: see docs/resp.md for those there are|"),
            ("CLIENT", "-ERR wrong number of arguments for 'client' command|"),
        ],
    );
}

#[test]
fn what_there_is_to_know() {
    let mut fake = fake();
    let count = crate::commands::all().len();
    check(
        &mut fake,
        &[
            ("CONFIG GET save", "*2|$4|save|$0||"),
            ("CONFIG GET APPENDONLY", "*2|$10|appendonly|$3|yes|"),
            ("CONFIG GET max* port", "*6|$10|maxclients|$2|10|$9|maxmemory|$9|134217728|$4|port|$4|7379|"),
            ("CONFIG GET nonsense", "*0|"),
            ("CONFIG GET", "-ERR wrong number of arguments for 'config|get' command|"),
            ("CONFIG SET a b", "-ERR unknown subcommand 'SET' of CONFIG: see docs/resp.md for those there are|"),
            ("COMMAND COUNT", &format!(":{count}|")),
            ("COMMAND COUNT x", "-ERR wrong number of arguments for 'command|count' command|"),
            ("COMMAND INFO get nope", "*2|*10|$3|get|:2|*2|+readonly|+fast|:1|:1|:1|*1|+@read|*0|*0|*0|*-1|"),
            (
                "COMMAND DOCS get",
                "*2|$3|get|*8|$7|summary|$15|Answers a value|$5|since|$5|0.1.0|$5|group|$6|string|$6|syntax|$3|key|",
            ),
            ("COMMAND NOPE", "-ERR unknown subcommand 'NOPE' of COMMAND: see docs/resp.md for those there are|"),
            ("WAIT 1 100", ":2|"),
            ("WAIT x 0", "-ERR value is not an integer or out of range|"),
            ("WAIT 0 -1", "-ERR timeout is negative|"),
        ],
    );
    for all in ["COMMAND", "COMMAND INFO", "COMMAND LIST"] {
        assert!(fake.run(all).starts_with(&format!("*{count}|")), "{all}");
    }
    assert!(fake.run("COMMAND DOCS").starts_with(&format!("*{}|", count * 2)));
    fake.run("HELLO 3");
    assert!(fake.run("COMMAND DOCS").starts_with(&format!("%{count}|")));
    assert_eq!(fake.run("CONFIG GET save"), "%1|$4|save|$0||");
}

#[test]
fn info_has_the_sections_that_are_asked_for() {
    let mut fake = fake();
    fake.run("MSET a 1 z 2");
    let all = fake.run("INFO everything");
    for section in ["# Server", "# Clients", "# Memory", "# Persistence", "# Stats", "# Replication", "# Commandstats"]
    {
        assert!(all.contains(section), "{section} in {all}");
    }
    assert!(all.contains("db0:keys=2,expires=0,avg_ttl=0") && all.contains("cmdstat_mset:calls=1,"), "{all}");
    assert!(!fake.run("INFO").contains("Commandstats"));
    let one = fake.run("INFO clients");
    assert!(one.contains("|# Clients|connected_clients:1|maxclients:10|") && !one.contains("# Server"), "{one}");
    assert_eq!(fake.run("INFO nonsense"), "$0||");
    fake.node.error = Some(OpError::Recovering(RegionId(1)));
    assert!(fake.run("INFO keyspace").contains("# Keyspace||"), "INFO answers while a region recovers");
    fake.run("HELLO 3");
    assert!(fake.run("INFO server").starts_with('='), "a verbatim string in RESP3");
}

#[test]
fn errors_say_what_to_do_and_keep_the_connection() {
    let long_key = "k".repeat(4097);
    let long_value = "v".repeat(1024 * 1024 + 1);
    let mut fake = fake();
    let set_long = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{long_value}\r\n", long_value.len());
    assert_eq!(fake.run_bytes(set_long.as_bytes()), "-ERR argument 2 is 1048577 bytes long, the limit is 1048576|");
    check(
        &mut fake,
        &[
            ("NOPE a b", "-ERR unknown command 'NOPE', with args beginning with: 'a' 'b' |"),
            ("GET", "-ERR wrong number of arguments for 'get' command|"),
            ("GET a b", "-ERR wrong number of arguments for 'get' command|"),
            ("GET \"\"", "-ERR the key is empty|"),
            ("MSET a 1 \"\" 2", "-ERR the key is empty|"),
            ("GET a", "$-1|"),
            (&format!("GET {long_key}"), "-ERR the key is 4097 bytes long, the limit is 4096|"),
            (&format!("KRANGE {long_key}k +"), "-ERR a bound is 4098 bytes long, the limit is 4096|"),
            ("PING", "+PONG|"),
        ],
    );
    let region = RegionId(3);
    for (error, expected) in [
        (OpError::Invalid("no".into()), "-ERR no|"),
        (OpError::Recovering(region), "-LOADING region 3 is recovering; try again|"),
        (OpError::NotPrimary { region, epoch: Epoch(1) }, "-LOADING region 3 is changing its primary; try again|"),
        (
            OpError::NotEnoughReplicas { region, in_sync: 1, needed: 2 },
            "-NOREPLICAS region 3 has 1 replicas in sync, 2 are needed to write; nothing was written|",
        ),
        (
            OpError::Unknown("the primary died".into()),
            "-UNKNOWN the command may or may not have been executed: the primary died|",
        ),
        (OpError::Unavailable("disk".into()), "-UNAVAILABLE disk|"),
        (OpError::Overloaded(region), "-TRYAGAIN too many operations wait in region 3; nothing was done|"),
        (
            OpError::Forgotten(region),
            "-TRYAGAIN region 3 has forgotten whether this request was executed before; nothing was done|",
        ),
        (
            OpError::AnswerGone { done: true },
            "-UNKNOWN it was executed by an earlier attempt, and the value that there was is no longer known|",
        ),
        (OpError::Unauthenticated("who are you".into()), "-NOAUTH who are you|"),
        (OpError::NotPermitted("no".into()), "-NOPERM no|"),
    ] {
        let codes: &[&str] = match error.kind() {
            ErrorKind::Refused => &["-ERR", "-NOAUTH", "-NOPERM"],
            ErrorKind::RetryLater { .. } => &["-LOADING", "-NOREPLICAS", "-TRYAGAIN"],
            ErrorKind::RetryNow => &["-TRYAGAIN"],
            ErrorKind::AskElsewhere => &["-LOADING"],
            ErrorKind::Unknown => &["-UNKNOWN"],
            ErrorKind::Operator => &["-UNAVAILABLE"],
        };
        assert!(codes.contains(&expected.split(' ').next().unwrap_or_default()), "{error:?}: {expected}");
        fake.node.error = Some(error);
        assert_eq!(fake.run("SET a 1"), expected);
    }
    fake.node.error = Some(OpError::Recovering(region));
    assert_eq!(fake.run("MGET a b c"), "-LOADING region 3 is recovering; try again|");
    fake.node.error = Some(OpError::Recovering(region));
    assert_eq!(fake.run("KEYS *"), "-LOADING region 3 is recovering; try again|");
    (1..=3).for_each(|region| fake.node.configure(RegionId(region), None));
    assert_eq!(fake.run("DBSIZE"), "-LOADING the table has no regions yet, or not all of them; try again|");
}

#[test]
fn wait_counts_the_backups_that_hold_every_answered_write() {
    let mut fake = Fake::new(&["m"]);
    let default = TableOptions { name: DEFAULT_TABLE.into(), ..TableOptions::default() };
    for (options, held) in [
        (default.clone(), 2),
        (TableOptions { quorum: Some(2), ..default.clone() }, 1),
        (TableOptions { quorum: Some(5), ..default.clone() }, 2),
        (TableOptions { acknowledge: Acknowledge::LastFlush, ..default.clone() }, 0),
    ] {
        fake.node.set(&ClusterPath::Table(DEFAULT_TABLE.into()), Some(encode_value(&options)));
        assert_eq!(fake.run("WAIT 1 0"), format!(":{held}|"), "{options:?}");
    }
}

#[test]
fn tables_are_kept_apart() {
    let mut fake = Fake::new(&["m"]);
    let long = "x".repeat(65);
    let script = [
        ("SET a default", "+OK|"),
        ("SET z default", "+OK|"),
        ("SELECT orders", "+OK|"),
        ("GET a", "$-1|"),
        ("SET a order", "+OK|"),
        ("SET b order", "+OK|"),
        ("SET z order", "+OK|"),
        ("DBSIZE", ":3|"),
        ("WAIT 1 0", ":1|"),
        ("KRANGE - + KEYS", "*3|$1|a|$1|b|$1|z|"),
        ("KRANGE - + REV KEYS LIMIT 1", "*1|$1|z|"),
        ("KPREFIX b", "*2|$1|b|$5|order|"),
        ("KEYS *", "*3|$1|a|$1|b|$1|z|"),
        ("INFO keyspace", "$85|# Keyspace|db0:keys=2,expires=0,avg_ttl=0|table_orders:keys=3,expires=0,avg_ttl=0||"),
        ("SELECT 0", "+OK|"),
        ("DBSIZE", ":2|"),
        ("WAIT 1 0", ":2|"),
        ("KRANGE - + KEYS", "*2|$1|a|$1|z|"),
        ("GET a", "$7|default|"),
        (
            "SELECT Orders",
            "-ERR \\\"Orders\\\" is no name of a table: it has 1 to 64 of the characters a-z, 0-9, _ and -, and begins with a letter|",
        ),
        ("SELECT nothing", "-ERR there is no table nothing; `leeward table list` shows those there are|"),
        ("GET a", "$7|default|"),
        ("SELECT orders", "+OK|"),
        ("RESET", "+RESET|"),
        ("GET a", "$7|default|"),
    ];
    for (command, reply) in script {
        assert_eq!(fake.run(command), reply, "{command}");
    }
    assert!(fake.run(&format!("SELECT {long}")).contains("no name of a table"));
}

#[test]
fn a_cursor_goes_on_in_its_own_table_only() {
    let mut fake = Fake::new(&[]);
    for key in ["a", "b", "c"] {
        assert_eq!(fake.run(&format!("SET {key} 1")), "+OK|");
    }
    let reply = fake.run("SCAN 0 COUNT 1");
    let cursor = reply.split('|').nth(2).expect("a cursor").to_owned();
    assert_eq!(fake.run("SELECT orders"), "+OK|");
    assert!(fake.run(&format!("SCAN {cursor} COUNT 1")).contains("of another table"));
    assert_eq!(fake.run("SELECT 0"), "+OK|");
    assert!(fake.run(&format!("SCAN {cursor} COUNT 5")).ends_with("*2|$1|b|$1|c|"));
}
