//! Work that a client can make long is done in steps, and each step ends when its quota is used up.

use super::fake::Fake;
use crate::commands::idle_node::number_of;
use crate::protocol_session::ProtocolSession;
use crate::quota::{COMMAND_UNITS, STEP_UNITS};
use bytes::Buf;
use leeward_format::op::OpResult;
use leeward_platform::Nanos;

/// Most commands that fit a step, one way or another.
const MOST: usize = (STEP_UNITS / COMMAND_UNITS) as usize + 1;

#[test]
fn a_pipeline_of_eighty_thousand_commands_is_cut_into_steps_and_answered_in_order() {
    const COMMANDS: usize = 80_000;
    let mut fake = Fake::new(&[]);
    let stream: String = (0..COMMANDS).map(|n| format!("ECHO {n}\r\n")).collect();
    fake.session.feed(stream.as_bytes());
    let (mut steps, mut next) = (0, 0);
    let mut rest = String::new();
    while next < COMMANDS {
        fake.step();
        steps += 1;
        let output = fake.session.output();
        let text = std::mem::take(&mut rest) + std::str::from_utf8(output).expect("text");
        output.advance(output.len());
        let before = next;
        let mut lines = text.split_inclusive("\r\n");
        while let (Some(len), Some(body)) = (lines.next(), lines.next()) {
            let number = next.to_string();
            assert_eq!((len.trim_end(), body.trim_end()), (&*format!("${}", number.len()), &*number));
            next += 1;
        }
        assert!(next - before <= MOST, "{} commands are answered in one step", next - before);
        assert!(next == COMMANDS || fake.session.has_work(), "it says that there is more");
    }
    assert!(steps >= COMMANDS / MOST, "{steps} steps");
    fake.step();
    assert!(!fake.session.has_work() && fake.session.wants_input());
}

#[test]
fn operations_are_submitted_in_steps() {
    let mut fake = Fake::new(&[]);
    // So that the window is wide open.
    for _ in 0..2 {
        fake.run("GET a");
    }
    fake.session.feed("GET a\r\n".repeat(1000).as_bytes());
    fake.step();
    let first = fake.waiting.len();
    assert!(first < 200, "{first} operations in one step");
    fake.advance();
    assert!(fake.waiting.len() > 900, "the rest follows, without input or answers: {}", fake.waiting.len());
}

#[test]
fn the_arguments_of_one_command_are_read_in_steps() {
    const KEYS: usize = 300_000;
    let mut fake = Fake::new(&[]);
    fake.session.feed(format!("*{}\r\n$6\r\nEXISTS\r\n{}", KEYS + 1, "$1\r\na\r\n".repeat(KEYS)).as_bytes());
    let mut steps = 0;
    while fake.waiting.is_empty() {
        fake.step();
        steps += 1;
        assert!(!fake.waiting.is_empty() || fake.session.has_work());
    }
    assert!(steps > KEYS as u32 / STEP_UNITS, "{steps} steps");
}

#[test]
fn empty_lines_are_work_too() {
    let mut fake = Fake::new(&[]);
    fake.session.feed("\r\n".repeat(STEP_UNITS as usize * 3).as_bytes());
    for _ in 0..3 {
        fake.step();
        assert!(fake.session.has_work());
    }
    fake.step();
    assert!(!fake.session.has_work());
}

#[test]
fn a_page_is_matched_against_a_hostile_pattern_in_steps_and_a_write_waits_for_them() {
    let mut fake = Fake::new(&[]);
    for n in 0..50 {
        fake.node.keys().insert(format!("{}{n}", "a".repeat(3000)).into(), "v".into());
    }
    fake.node.keys().insert(format!("{}b", "a".repeat(2500)).into(), "v".into());
    let pattern = format!("*{}b", "a".repeat(1500));
    fake.feed(format!("KEYS {pattern}\r\nSET z 1\r\nPING\r\n").as_bytes());
    assert_eq!(fake.waiting.len(), 1, "the write waits for the scan");
    let number = number_of(&fake.waiting.remove(0));
    let entries = fake.node.keys().clone().into_iter().collect();
    fake.with(|session, context, _| {
        let page = OpResult::Entries { entries, resume: None };
        session.complete(number, page, context);
        assert!(context.quota.is_used_up(), "it begins at once and does not finish");
    });
    let mut steps = 0;
    while fake.waiting.is_empty() {
        assert!(fake.session.output().is_empty());
        fake.step();
        steps += 1;
        assert!(fake.session.has_work() || !fake.waiting.is_empty());
    }
    assert!(steps > 100, "{steps} steps");
    fake.answer(0);
    let found = format!("*1|$2501|{}b|+OK|+PONG|", "a".repeat(2500));
    assert_eq!(fake.take_output(), found);
}

#[test]
fn patterns_and_arguments_have_an_end() {
    let mut fake = Fake::new(&[]);
    let (long, many) = ("a".repeat(16 * 1024 + 1), " a".repeat(1100));
    for command in [format!("KEYS {long}"), format!("SCAN 0 MATCH {long}"), format!("CONFIG GET a {long}")] {
        assert_eq!(fake.run(&command), "-ERR a pattern is limited to 16384 bytes|");
    }
    for (command, name) in [("INFO", "info"), ("COMMAND INFO", "command"), ("CLIENT LIST ID", "client")] {
        let reply = fake.run(&format!("{command}{many}"));
        assert_eq!(reply, format!("-ERR '{name}' takes at most 1024 arguments|"));
    }
    assert_eq!(fake.run(&format!("EXISTS{many}")), ":0|", "lists of keys are longer");
}

#[test]
fn figures_are_gathered_once_for_all_who_ask_at_a_time() {
    let mut fake = Fake::new(&[]);
    fake.run(&"INFO server clients replication commandstats keyspace\r\n".repeat(10));
    assert_eq!(fake.node.gathered.get(), 0, "no section that was asked for needs them");
    for _ in 0..100 {
        fake.run("INFO memory");
        fake.run("INFO");
    }
    assert_eq!(fake.node.gathered.get(), 1);
    fake.now += Nanos::from_millis(2);
    fake.run("INFO stats");
    assert_eq!(fake.node.gathered.get(), 2, "later they are gathered anew");
}
