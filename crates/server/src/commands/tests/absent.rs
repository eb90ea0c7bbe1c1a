//! What Leeward does not have: its errors, and what is done with a transaction after its `MULTI` was refused.

use super::fake::Fake;
use leeward_format::op::Op;
use leeward_platform::Nanos;

const REFUSED: &str =
    "-ERR MULTI is not supported: Leeward has no transactions. What follows is refused up to EXEC or DISCARD|";
const NOT_EXECUTED: &str = "-ERR not executed: MULTI was refused, and neither EXEC nor DISCARD has come since|";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.|";

#[test]
fn nothing_of_a_refused_transaction_is_executed() {
    let mut fake = Fake::new(&["m"]);
    fake.run("MSET a 100 b 100");
    // As clients send it, in one piece.
    fake.feed(b"MULTI\r\nDECRBY a 30\r\nINCRBY b 30\r\nGET a\r\nNOPE\r\nEXEC\r\n");
    assert_eq!(fake.waiting.len(), 0, "nothing is submitted");
    assert_eq!(fake.take_output(), format!("{REFUSED}{}{ABORTED}", NOT_EXECUTED.repeat(4)));
    assert_eq!(fake.run("MGET a b"), "*2|$3|100|$3|100|", "the connection is as before");
    // And one by one.
    assert_eq!(fake.run("multi"), REFUSED);
    assert_eq!(fake.run("SET a 1"), NOT_EXECUTED);
    assert_eq!(fake.run("DISCARD now"), "-ERR wrong number of arguments for 'discard' command|");
    assert_eq!(fake.run("SET a 1"), NOT_EXECUTED, "which has ended nothing");
    assert_eq!(fake.run("exec"), ABORTED);
    fake.run("MULTI");
    let wrong = "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command|";
    assert_eq!(fake.run("EXEC now"), wrong, "which has");
    assert_eq!(fake.run("EXEC"), "-ERR EXEC without MULTI|");
    assert_eq!(fake.run("GET a"), "$3|100|");
}

#[test]
fn what_ends_a_refused_transaction_does_so_as_in_redis() {
    let mut fake = Fake::new(&[]);
    assert_eq!(fake.run("DISCARD"), "-ERR DISCARD without MULTI|");
    fake.run("MULTI");
    assert_eq!(fake.run("MULTI"), "-ERR MULTI calls can not be nested|");
    assert_eq!(fake.run("WATCH a"), "-ERR WATCH inside MULTI is not allowed|");
    assert_eq!(fake.run("SET a 1"), NOT_EXECUTED, "neither has ended it");
    assert_eq!(fake.run("DISCARD"), "+OK|");
    assert_eq!(fake.run("GET a"), "$-1|");
    fake.run("MULTI");
    assert_eq!(fake.run("SELECT orders"), NOT_EXECUTED);
    assert_eq!(fake.run("RESET"), "+RESET|");
    assert_eq!(fake.run("SET a 1"), "+OK|");
    let written: Vec<String> = fake.node.tables.keys().map(ToString::to_string).collect();
    assert_eq!(written, ["default"], "the refused SELECT has selected nothing");
    fake.run("MULTI");
    fake.feed(b"SET a 2\r\nQUIT\r\nSET a 3\r\n");
    assert_eq!(fake.take_output(), format!("{NOT_EXECUTED}+OK|"));
    assert!(fake.is_finished() && fake.waiting.is_empty());
}

#[test]
fn a_multi_that_is_wrong_or_too_large_begins_it_too() {
    let mut fake = Fake::new(&[]);
    let large = format!("*2\r\n$5\r\nMULTI\r\n${}\r\n{}\r\n", 1 << 21, "x".repeat(1 << 21));
    for multi in [&b"MULTI now\r\n"[..], large.as_bytes()] {
        assert_eq!(fake.run_bytes(multi), REFUSED);
        assert_eq!(fake.run("SET a 1"), NOT_EXECUTED);
        assert_eq!(fake.run("EXEC"), ABORTED);
    }
    fake.run("MULTI");
    let large = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n{}\r\n", 1 << 21, "x".repeat(1 << 21));
    assert_eq!(fake.run_bytes(large.as_bytes()), NOT_EXECUTED);
}

/// A connection that went back to a pool after its `MULTI` must not refuse the commands of others for ever.
#[test]
fn long_after_a_refused_multi_the_connection_is_closed_and_still_nothing_is_executed() {
    let mut fake = Fake::new(&[]);
    fake.run("MULTI");
    fake.now += Nanos::from_secs(60);
    assert_eq!(fake.run("EXEC"), ABORTED, "a slow client may end it at any time");
    fake.run("MULTI");
    fake.now += Nanos::from_secs(5);
    assert_eq!(fake.run("SET a 1"), NOT_EXECUTED);
    fake.now += Nanos::from_millis(1);
    let closed = fake.run("SET a 1");
    assert!(closed.starts_with("-ERR not executed") && closed.ends_with("the connection is closed|"), "{closed}");
    assert!(fake.is_finished());
}

#[test]
fn what_there_is_not_says_so_in_words_that_no_client_takes_for_advice() {
    let mut fake = Fake::new(&[]);
    for (line, what) in [
        ("EVAL \"return 1\" 0", "EVAL is not supported: Leeward runs no scripts"),
        ("evalsha ffff 0", "EVALSHA is not supported: Leeward runs no scripts"),
        ("EVALSHA_RO ffff 0", "EVALSHA_RO is not supported: Leeward runs no scripts"),
        ("SCRIPT LOAD x", "SCRIPT is not supported: Leeward runs no scripts"),
        ("FUNCTION LIST", "FUNCTION is not supported: Leeward runs no scripts"),
        ("FCALL f 0", "FCALL is not supported: Leeward runs no scripts"),
        ("WATCH a", "WATCH is not supported: Leeward has no transactions"),
        ("UNWATCH", "UNWATCH is not supported: Leeward has no transactions"),
        ("SUBSCRIBE a", "SUBSCRIBE is not supported: Leeward has no channels"),
        ("PUBLISH a b", "PUBLISH is not supported: Leeward has no channels"),
    ] {
        let reply = fake.run(line);
        assert!(reply.starts_with(&format!("-ERR {what}")), "{line}: {reply}");
    }
    assert_eq!(fake.run("COMMAND INFO multi eval watch"), "*3|*-1|*-1|*-1|");
    assert!(fake.run("CLIENT TRACKING ON").starts_with("-ERR unknown subcommand 'TRACKING'"));
    assert!(fake.run("LPUSH a b").starts_with("-ERR unknown command 'LPUSH'"));
    assert_eq!(fake.run("CLIENT REPLY ON"), "+OK|");
    fake.feed(b"CLIENT REPLY SKIP\r\nSET a 1\r\nGET a\r\n");
    assert!(fake.waiting.is_empty(), "the client would take the reply of SET for that of GET");
    assert!(fake.take_output().starts_with("-ERR CLIENT REPLY OFF and SKIP are not supported") && fake.is_finished());
}

#[test]
fn a_command_in_flight_before_the_multi_is_answered_before_it() {
    let mut fake = Fake::new(&[]);
    fake.feed(b"SET a 1\r\nMULTI\r\nSET a 2\r\nEXEC\r\nSET a 3\r\n");
    let submitted: Vec<bool> = fake.waiting.iter().map(|s| matches!(s.op, Op::Put { .. })).collect();
    assert_eq!(submitted, [true, true], "the first and the last");
    fake.answer(1);
    fake.answer(0);
    assert_eq!(fake.take_output(), format!("+OK|{REFUSED}{NOT_EXECUTED}{ABORTED}+OK|"));
}
