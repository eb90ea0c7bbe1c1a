//! Requests: what Redis accepts is accepted, cut at every byte; what it refuses is refused in its words; and no bytes
//! make the parser panic or hold more than it may.

use super::*;
use proptest::prelude::*;

fn words(words: &[&str]) -> Parsed {
    Parsed::Command(words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect())
}

/// Everything in `bytes`, fed in pieces of `step` bytes, and the error that ended it.
fn parse(bytes: &[u8], step: usize) -> (Vec<Parsed>, Option<String>) {
    let mut parser = Parser::default();
    let mut input = BytesMut::new();
    let mut found = Vec::new();
    for piece in bytes.chunks(step.max(1)) {
        input.extend_from_slice(piece);
        loop {
            match parser.next(&mut input, &mut Quota::of(u32::MAX)) {
                Ok(Some(parsed)) => found.push(parsed),
                Ok(None) => break,
                Err(error) => return (found, Some(error.to_string())),
            }
        }
    }
    (found, None)
}

fn encode(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend(format!("${}\r\n", arg.len()).bytes());
        out.extend(arg);
        out.extend(b"\r\n");
    }
    out
}

#[test]
fn commands_are_found_wherever_the_stream_is_cut() {
    let stream = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n\r\n*0\r\n*-1\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\nset a \"b c\"\n";
    let expected = vec![words(&["GET", "a"]), words(&["PING"]), words(&["SET", "k", ""]), words(&["set", "a", "b c"])];
    for step in 1..stream.len() {
        assert_eq!(parse(stream, step), (expected.clone(), None), "in pieces of {step}");
    }
}

#[test]
fn inline_commands_are_quoted_as_in_redis() {
    let cases: &[(&str, &[&str])] = &[
        ("  PING  ", &["PING"]),
        (r#"set k "a\n\x41\"b""#, &["set", "k", "a\nA\"b"]),
        (r"set k 'it\'s' x", &["set", "k", "it's", "x"]),
        (r#"set k """#, &["set", "k", ""]),
        ("a\tb", &["a", "b"]),
    ];
    for (line, expected) in cases {
        assert_eq!(parse(format!("{line}\r\n").as_bytes(), 1000).0, vec![words(expected)], "{line}");
    }
    for line in ["set k \"open", "set k 'open", "set k \"a\"b"] {
        let (_, error) = parse(format!("{line}\r\n").as_bytes(), 1000);
        assert_eq!(error.as_deref(), Some("Protocol error: unbalanced quotes in request"), "{line}");
    }
}

#[test]
fn malformed_requests_get_redis_words() {
    let long_line = format!("*{}", "1".repeat(100));
    let long_inline = "a".repeat(MAX_INLINE_BYTES + 1);
    let cases: &[(&str, &str)] = &[
        ("*x\r\n", "invalid multibulk length"),
        ("*1048577\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1\n", "invalid multibulk length"),
        (&long_line, "too big mbulk count string"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$+1\r\n", "invalid bulk length"),
        ("*1\r\n$01\r\n", "invalid bulk length"),
        ("*1\r\n$536870913\r\n", "invalid bulk length"),
        ("*1\r\n$1\r\nabc", "expected the end of a bulk string"),
        (&long_inline, "too big inline request"),
    ];
    for (stream, expected) in cases {
        for step in [1, 7, 100_000] {
            let (found, error) = parse(stream.as_bytes(), step);
            assert_eq!(found, Vec::new(), "{stream:.20}");
            assert_eq!(error.as_deref(), Some(&*format!("Protocol error: {expected}")), "{stream:.20}");
        }
    }
}

#[test]
fn an_argument_beyond_the_limit_is_dropped_as_it_arrives_and_the_connection_goes_on() {
    let huge = MAX_VALUE_BYTES + 1;
    let mut parser = Parser::default();
    let mut input = BytesMut::from(&format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${huge}\r\n")[..]);
    assert_eq!(parser.next(&mut input, &mut Quota::of(u32::MAX)), Ok(None));
    let piece = vec![b'x'; 4096];
    let mut sent = 0;
    while sent < huge {
        let len = piece.len().min(huge - sent);
        input.extend_from_slice(&piece[..len]);
        sent += len;
        assert_eq!(parser.next(&mut input, &mut Quota::of(u32::MAX)), Ok(None));
        assert!(input.is_empty(), "nothing of it is kept");
    }
    input.extend_from_slice(b"\r\nPING\r\n");
    let reason = format!("argument 2 is {huge} bytes long, the limit is {MAX_VALUE_BYTES}");
    assert_eq!(
        parser.next(&mut input, &mut Quota::of(u32::MAX)),
        Ok(Some(Parsed::TooLarge { name: Bytes::from("SET"), reason }))
    );
    assert_eq!(parser.next(&mut input, &mut Quota::of(u32::MAX)), Ok(Some(words(&["PING"]))));
}

#[test]
fn arguments_beyond_the_limit_together_are_dropped() {
    let mut parser = Parser::default();
    let mut input = BytesMut::from(&b"*41\r\n$4\r\nMSET\r\n"[..]);
    let value = vec![b'v'; MAX_VALUE_BYTES];
    for _ in 0..40 {
        assert_eq!(parser.next(&mut input, &mut Quota::of(u32::MAX)), Ok(None));
        input.extend_from_slice(format!("${MAX_VALUE_BYTES}\r\n").as_bytes());
        input.extend_from_slice(&value);
        input.extend_from_slice(b"\r\n");
        assert!(parser.bytes <= MAX_COMMAND_BYTES);
    }
    assert!(
        matches!(parser.next(&mut input, &mut Quota::of(u32::MAX)), Ok(Some(Parsed::TooLarge { name, .. })) if &name[..] == b"MSET")
    );
    input.extend_from_slice(b"PING\r\n");
    assert_eq!(parser.next(&mut input, &mut Quota::of(u32::MAX)), Ok(Some(words(&["PING"]))));
}

#[test]
fn integers_are_canonical() {
    for (text, expected) in [
        ("0", Some(0)),
        ("-1", Some(-1)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("", None),
        ("-", None),
        ("-0", None),
        ("00", None),
        ("01", None),
        ("+1", None),
        (" 1", None),
        ("1.0", None),
        ("0x1", None),
    ] {
        assert_eq!(parse_integer(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn http_is_refused_before_its_body_is_read() {
    for request in ["POST / HTTP/1.1\r\n\r\nSET a b\r\n", "PUT / HTTP/1.1\r\nhost: x\r\n\r\nSET a b\r\n"] {
        let (commands, error) = parse(request.as_bytes(), 7);
        assert!(commands.len() < 2, "{commands:?}");
        assert!(error.is_some_and(|error| error.ends_with("this port speaks the Redis protocol, not HTTP")));
    }
}

proptest! {
    #[test]
    fn any_commands_survive_any_cut(
        commands in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 1..8),
        step in 1_usize..64,
    ) {
        let stream: Vec<u8> = commands.iter().flat_map(|args| encode(args)).collect();
        let expected: Vec<Parsed> = commands
            .iter()
            .map(|args| Parsed::Command(args.iter().map(|arg| Bytes::copy_from_slice(arg)).collect()))
            .collect();
        prop_assert_eq!(parse(&stream, step), (expected, None));
    }

    #[test]
    fn mutated_streams_never_panic_and_do_not_depend_on_the_cut(
        args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..5),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        step in 1_usize..16,
    ) {
        let mut stream = encode(&args).repeat(3);
        for (at, byte) in changes {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        let whole = parse(&stream, stream.len());
        let pieces = parse(&stream, step);
        prop_assert_eq!(&whole.0, &pieces.0);
        // Which of two complaints about one line comes first may depend on how much of the line is there.
        prop_assert_eq!(whole.1.is_some(), pieces.1.is_some());
    }

    #[test]
    fn random_bytes_never_panic(stream in prop::collection::vec(any::<u8>(), 0..300), step in 1_usize..40) {
        parse(&stream, step);
    }
}
