//! Order, batches, back-pressure and the end of connections.

use super::fake::Fake;
use crate::commands::MAX_REPLY_BYTES;
use crate::commands::idle_node::number_of;
use crate::protocol_session::ProtocolSession;
use bytes::{Buf, Bytes};
use leeward_format::cluster::GroupConfig;
use leeward_format::op::{Op, OpResult};
use proptest::prelude::*;

#[test]
fn a_pipeline_is_submitted_whole_and_answered_in_order() {
    let mut fake = Fake::new(&[]);
    fake.feed(b"SET a 1\r\nINCR a\r\nGET a\r\nPING\r\nGET b\r\n");
    assert_eq!(fake.waiting.len(), 4, "all of it at once");
    assert_eq!(fake.take_output(), "");
    // The node executes them in order and answers them in any.
    let results: Vec<(u64, OpResult)> = std::mem::take(&mut fake.waiting)
        .into_iter()
        .map(|s| (number_of(&s), fake.node.execute(s.table, s.op)))
        .collect();
    for index in [3, 1, 0] {
        let (number, result) = results[index].clone();
        fake.complete(number, result);
    }
    assert_eq!(fake.take_output(), "+OK|:2|", "what waits for GET a waits");
    fake.complete(results[2].0, results[2].1.clone());
    assert_eq!(fake.take_output(), "$1|2|+PONG|$-1|");
}

#[test]
fn a_read_that_the_node_answers_at_once_is_answered_where_nothing_is_before_it() {
    let mut fake = Fake::new(&[]);
    fake.run_bytes(b"SET a 1\r\n");
    fake.node.is_quick = true;
    fake.feed(b"GET a\r\nSTRLEN a\r\nGET b\r\nTTL a\r\n");
    assert_eq!((fake.take_output().as_str(), fake.waiting.len()), ("$1|1|:1|$-1|:-1|", 0));
    fake.feed(b"GET a\r\nSET a 22\r\nGET a\r\nPING\r\n");
    assert_eq!(fake.take_output(), "$1|1|");
    assert_eq!(fake.waiting.len(), 2, "what follows a write waits for it, and for its reply");
    fake.answer(0);
    fake.answer(0);
    assert_eq!(fake.take_output(), "+OK|$2|22|+PONG|");
    fake.feed(b"PING\r\nGET a\r\n");
    assert_eq!((fake.take_output().as_str(), fake.waiting.len()), ("+PONG|", 1), "a reply before it has not left");
    fake.answer(0);
    assert_eq!(fake.take_output(), "$2|22|");
    let mut rest = String::new();
    for _ in 0..3 {
        fake.units = 1;
        fake.feed(b"GET a\r\nGET a\r\n");
        rest += &fake.take_output();
    }
    assert_eq!(rest, "$2|22|".repeat(6), "a step that is cut goes on");
}

#[test]
fn a_scan_sees_the_writes_before_it_and_none_after_it() {
    let mut fake = Fake::new(&["m"]);
    fake.feed(b"SET a 1\r\nKEYS *\r\nGET a\r\nSET b 2\r\nSET z 3\r\nKEYS *\r\n");
    let submitted = |fake: &Fake| fake.waiting.iter().map(|s| s.op.is_write()).collect::<Vec<_>>();
    assert_eq!(submitted(&fake), [true], "the scan waits for the write, and what follows for the scan");
    fake.answer(0);
    assert_eq!(submitted(&fake), [false, false], "the read after the scan need not wait");
    fake.answer(0);
    assert!(matches!(fake.waiting[..], [_, _]), "the scan goes on in the next region: {:?}", fake.waiting);
    while !fake.waiting.is_empty() {
        fake.answer(0);
    }
    assert_eq!(fake.take_output(), "+OK|*1|$1|a|$1|1|+OK|+OK|*3|$1|a|$1|b|$1|z|");
}

#[test]
fn replies_are_in_the_version_that_was_spoken_when_the_command_came() {
    let mut fake = Fake::new(&[]);
    let output = fake.run_bytes(b"GET a\r\nHELLO 3\r\nGET a\r\nHELLO 2\r\nGET a\r\n");
    let nulls: Vec<&str> = output.split('|').filter(|line| ["$-1", "_"].contains(line)).collect();
    assert_eq!(nulls, ["$-1", "_", "$-1"]);
    assert!(output.contains("|%7|") && output.contains("|*14|"), "HELLO answers in the new version: {output}");
}

#[test]
fn wait_counts_after_the_writes_before_it() {
    let mut fake = Fake::new(&[]);
    fake.feed(b"SET a 1\r\nWAIT 2 0\r\n");
    let mut config = GroupConfig::clone(fake.node.routes().regions().next().expect("a region"));
    config.backups.truncate(1);
    fake.node.configure(config.region, Some(&config));
    fake.answer(0);
    assert_eq!(fake.take_output(), "+OK|:1|");
}

#[test]
fn a_protocol_error_is_answered_after_what_came_before_it_and_ends_the_connection() {
    let mut fake = Fake::new(&[]);
    fake.feed(b"GET a\r\n*1\r\n:no\r\nPING\r\n");
    assert!(!fake.session.wants_input() && !fake.session.is_finished());
    fake.answer(0);
    assert!(!fake.session.is_finished(), "the replies were not sent");
    assert_eq!(fake.take_output(), "$-1|-ERR Protocol error: expected '$', got ':'|");
    assert!(fake.session.is_finished());
}

#[test]
fn quit_answers_and_ends_and_what_follows_it_is_ignored() {
    let mut fake = Fake::new(&[]);
    assert_eq!(fake.run_bytes(b"PING\r\nQUIT\r\nPING\r\n"), "+PONG|+OK|");
    assert!(fake.session.is_finished());
    fake.feed(b"PING\r\n");
    assert_eq!(fake.take_output(), "");
}

#[test]
fn the_end_of_the_stream_lets_what_was_asked_be_answered() {
    let mut fake = Fake::new(&[]);
    fake.feed(b"SET a 1\r\nGET");
    fake.session.stop();
    fake.answer(0);
    assert_eq!(fake.take_output(), "+OK|");
    assert!(fake.session.is_finished());
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let mut fake = Fake::new(&[]);
    let value = "v".repeat(100_000);
    fake.node.keys().insert("k".into(), value.clone().into());
    fake.feed("GET k\r\n".repeat(1000).as_bytes());
    let mut most_waiting = 0;
    let mut held = 0;
    while !fake.waiting.is_empty() {
        most_waiting = most_waiting.max(fake.waiting.len());
        fake.answer(0);
        held = held.max(fake.session.output().len());
    }
    assert!(!fake.session.wants_input());
    assert!(most_waiting <= 200, "{most_waiting} in flight");
    assert!(held < (1 << 20) + value.len() + 11, "{held} bytes are encoded and not sent");
    let mut answered = 0;
    loop {
        while !fake.waiting.is_empty() {
            fake.answer(0);
        }
        let len = fake.session.output().len();
        if len == 0 {
            break;
        }
        assert_eq!(len % (value.len() + 11), 0);
        answered += len / (value.len() + 11);
        fake.session.output().advance(len);
        fake.advance();
    }
    assert_eq!(answered, 1000, "nothing is lost");
    assert!(fake.session.wants_input());
}

#[test]
fn results_that_wait_for_an_earlier_reply_are_bounded() {
    let mut fake = Fake::new(&[]);
    fake.node.keys().insert("k".into(), Bytes::from(vec![b'v'; 1 << 20]));
    fake.feed("GET k\r\n".repeat(1000).as_bytes());
    // The first is not answered; how many others can be?
    let mut answered = 0;
    while fake.waiting.len() > 1 {
        fake.answer(1);
        answered += 1;
    }
    assert!((16..100).contains(&answered), "{answered} results of 1 MiB are held");
    let mut replies = 0;
    while replies < 1000 {
        while !fake.waiting.is_empty() {
            fake.answer(0);
        }
        let len = fake.session.output().len();
        assert_ne!(len, 0, "it makes no progress after {replies} replies");
        replies += len / (1 << 20);
        fake.session.output().advance(len);
        fake.advance();
    }
}

#[test]
fn commands_with_long_arguments_are_not_all_taken_at_once() {
    let mut fake = Fake::new(&[]);
    let command = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n{}\r\n", "v".repeat(1_000_000));
    let mut fed = 0;
    while fake.session.wants_input() {
        fake.feed(command.as_bytes());
        fed += 1;
    }
    assert!((32..40).contains(&fed), "{fed} commands of a megabyte");
    assert_eq!(fake.waiting.len(), fed, "all that were taken are one batch");
    while !fake.waiting.is_empty() {
        fake.answer(0);
    }
    assert!(fake.session.wants_input());
    assert_eq!(fake.take_output(), "+OK|".repeat(fed));
}

#[test]
fn a_reply_beyond_the_limit_is_an_error_and_lets_its_memory_go() {
    let mut fake = Fake::new(&[]);
    fake.node.keys().insert("k".into(), Bytes::from(vec![b'v'; 1 << 20]));
    let keys = " k".repeat(MAX_REPLY_BYTES / (1 << 20) + 40);
    let reply = fake.run(&format!("MGET{keys}"));
    assert_eq!(reply, "-ERR the reply would be longer than 67108864 bytes: ask for less (LIMIT, SCAN)|");
    assert_eq!(fake.run("STRLEN k"), ":1048576|", "the connection goes on");
}

#[test]
fn the_values_of_counted_keys_are_no_part_of_the_reply() {
    let mut fake = Fake::new(&[]);
    let value = Bytes::from(vec![b'v'; 1 << 20]);
    let count = MAX_REPLY_BYTES / value.len() + 40;
    let names: Vec<String> = (0..count).map(|number| format!("k{number}")).collect();
    fake.node.keys().extend(names.iter().map(|name| (name.clone().into(), value.clone())));
    for command in ["EXISTS", "DEL"] {
        assert_eq!(fake.run(&format!("{command} {} none", names.join(" "))), format!(":{count}|"), "{command}");
    }
    assert!(fake.node.keys().is_empty());
}

#[test]
fn a_scan_that_does_not_advance_is_an_error_not_a_loop() {
    let mut fake = Fake::new(&[]);
    for (command, resume) in [("KRANGE b z", "b"), ("KRANGE b z", "a"), ("KRANGE b z REV", "z")] {
        fake.feed(format!("{command}\r\n").as_bytes());
        let number = number_of(&fake.waiting.remove(0));
        fake.complete(number, OpResult::Entries { entries: Vec::new(), resume: Some(resume.into()) });
        assert_eq!(fake.take_output(), "-UNAVAILABLE the primary's answer to a scan does not advance|", "{command}");
    }
}

#[test]
fn a_value_that_went_with_a_lost_answer_is_not_called_absent() {
    for (old, expected) in [(Some("v"), "$1|v|"), (None, "-UNKNOWN")] {
        let mut fake = Fake::new(&[]);
        fake.feed(b"GETDEL a\r\n");
        let number = number_of(&fake.waiting.remove(0));
        fake.complete(number, OpResult::Deleted { done: true, old: old.map(Bytes::from), version: None });
        let reply = fake.take_output();
        assert!(reply.starts_with(expected), "{reply}");
    }
}

#[test]
fn a_result_of_the_wrong_kind_is_an_error_not_a_panic() {
    for command in
        ["GET a", "SET a 1", "SET a 1 GET", "SETNX a 1", "DEL a", "GETDEL a", "INCR a", "KEYS *", "MGET a", "DBSIZE"]
    {
        let mut fake = Fake::new(&[]);
        fake.feed(format!("{command}\r\n").as_bytes());
        let is_entries = matches!(fake.waiting[0].op, Op::Scan(_));
        let wrong = if is_entries { OpResult::Integer(1) } else { OpResult::Entries { entries: vec![], resume: None } };
        let number = number_of(&fake.waiting.remove(0));
        fake.complete(number, wrong);
        assert_ne!(fake.take_output(), "", "{command} answers something");
    }
}

fn command() -> impl Strategy<Value = String> {
    let key = "[a-e]";
    prop_oneof![
        (key, "[0-9]{1,3}").prop_map(|(key, value)| format!("SET {key} {value}")),
        key.prop_map(|key| format!("GET {key}")),
        key.prop_map(|key| format!("INCR {key}")),
        (key, key).prop_map(|(one, two)| format!("MGET {one} {two}")),
        (key, key).prop_map(|(one, two)| format!("DEL {one} {two}")),
        (key, key).prop_map(|(one, two)| format!("MSET {one} 1 {two} 2")),
        (key, key).prop_map(|(one, two)| format!("KRANGE {one} {two}")),
        (key, key).prop_map(|(one, two)| format!("KRANGE {one} {two} REV LIMIT 2 KEYS")),
        (key, key).prop_map(|(one, two)| format!("KDELRANGE {one} {two}")),
        Just("KEYS *".to_owned()),
        Just("PING".to_owned()),
        Just("DBSIZE".to_owned()),
        Just("NOPE".to_owned()),
    ]
}

proptest! {
    /// However the stream and the work are cut, and in whatever order the answers come, a pipeline answers what the same
    /// commands answer one by one.
    #[test]
    fn pipelines_answer_as_single_commands_do(
        commands in prop::collection::vec(command(), 1..30),
        cut in 1_usize..50,
        units in 1_u32..300,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 400),
    ) {
        let mut one_by_one = Fake::new(&["b", "d"]);
        let expected: String = commands.iter().map(|command| one_by_one.run(command)).collect();

        let mut fake = Fake::new(&["b", "d"]);
        fake.units = units;
        let stream: String = commands.iter().map(|command| format!("{command}\r\n")).collect();
        let mut picks = picks.into_iter();
        let mut done: Vec<(u64, OpResult)> = Vec::new();
        let mut output = String::new();
        let mut pieces = stream.as_bytes().chunks(cut);
        loop {
            let piece = pieces.next();
            fake.feed(piece.unwrap_or_default());
            // The node executes operations in the order of their submission ...
            for submission in std::mem::take(&mut fake.waiting) {
                done.push((number_of(&submission), fake.node.execute(submission.table, submission.op)));
            }
            // ... and answers them in any order.
            if !done.is_empty() {
                let pick = picks.next().map_or(0, |pick| pick.index(done.len()));
                let (number, result) = done.swap_remove(pick);
                fake.complete(number, result);
            }
            output += &fake.take_output();
            if piece.is_none() && done.is_empty() && fake.waiting.is_empty() {
                break;
            }
        }
        prop_assert_eq!(output, expected);
    }

    #[test]
    fn random_bytes_never_panic_a_session(stream in prop::collection::vec(any::<u8>(), 0..400)) {
        Fake::new(&["m"]).run_bytes(&stream);
    }
}

#[test]
fn a_pipeline_stays_in_the_table_that_was_selected_when_each_command_came() {
    let mut fake = Fake::new(&["m"]);
    let line = b"SET k 1\r\nSELECT orders\r\nSET k 2\r\nGET k\r\nSELECT 0\r\nGET k\r\n";
    assert_eq!(fake.run_bytes(line), "+OK|+OK|+OK|$1|2|+OK|$1|1|");
}
