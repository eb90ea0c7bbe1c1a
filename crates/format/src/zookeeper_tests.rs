//! Packets as a server takes and sends them, and bytes that are none.

use super::*;
use proptest::prelude::*;

/// The one packet in `out`, as text: printable bytes as they are, others in hexadecimal.
fn shown(request: &Request<'_>) -> String {
    let mut out = Vec::new();
    write_request(7, request, &mut out);
    let body = read_packet(&out).unwrap().expect("a whole packet");
    assert_eq!(body.len() + LENGTH_BYTES, out.len());
    body.iter()
        .map(|byte| if byte.is_ascii_graphic() { (*byte as char).into() } else { format!("{byte:x}.") })
        .collect()
}

#[test]
fn requests_are_written_as_servers_read_them() {
    for (request, expected) in [
        (Request::Ping, "0.0.0.7.0.0.0.b."),
        (Request::Close, "0.0.0.7.ff.ff.ff.f5."),
        (Request::Digest("u:p"), "0.0.0.7.0.0.0.d0.0.0.0.0.0.0.6.digest0.0.0.3.u:p"),
        (Request::Sync("/a"), "0.0.0.7.0.0.0.9.0.0.0.2./a"),
        (Request::Watch("/a"), "0.0.0.7.0.0.0.j0.0.0.2./a0.0.0.1."),
        (
            Request::Data(&["/a".into(), "/b".into()]),
            "0.0.0.7.0.0.0.16.0.0.0.4.0.ff.ff.ff.ff.0.0.0.2./a0.0.0.0.4.0.ff.ff.ff.ff.0.0.0.2./b0.ff.ff.ff.ff.1.ff.ff.ff.ff.",
        ),
        (Request::Children("/a"), "0.0.0.7.0.0.0.8.0.0.0.2./a0."),
    ] {
        assert_eq!(shown(&request), expected);
    }
    let (path, version) = (String::from("/a"), 3);
    let steps = [
        Step::Check { path: path.clone(), version },
        Step::Set { path: path.clone(), value: Some(Bytes::from("v")), version: Some(version) },
        Step::Set { path: path.clone(), value: None, version: None },
        Step::Delete { path: path.clone(), version: None },
        Step::Create { path, value: Some(Bytes::new()), ephemeral: true, access: Access::Creator },
    ];
    let expected = [
        "0.0.0.7.0.0.0.e.",
        "0.0.0.d.0.ff.ff.ff.ff.0.0.0.2./a0.0.0.3.",
        "0.0.0.5.0.ff.ff.ff.ff.0.0.0.2./a0.0.0.1.v0.0.0.3.",
        "0.0.0.5.0.ff.ff.ff.ff.0.0.0.2./aff.ff.ff.ff.ff.ff.ff.ff.",
        "0.0.0.2.0.ff.ff.ff.ff.0.0.0.2./aff.ff.ff.ff.",
        "0.0.0.1.0.ff.ff.ff.ff.0.0.0.2./a0.0.0.0.0.0.0.1.0.0.0.1f.0.0.0.4.auth0.0.0.0.0.0.0.1.",
        "ff.ff.ff.ff.1.ff.ff.ff.ff.",
    ];
    assert_eq!(shown(&Request::Multi(&steps)).replace("0.:", ":"), expected.concat());
}

#[test]
fn a_session_begins() {
    let mut out = Vec::new();
    let connect = Connect { last_zxid: 5, timeout_ms: 1000, session: 9, password: [0xab; PASSWORD_BYTES] };
    write_connect(&connect, &mut out);
    assert_eq!(out.len(), LENGTH_BYTES + 4 + 8 + 4 + 8 + 4 + 16 + 1);
    assert_eq!(out[..20], [0, 0, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 3, 232]);
    // The answer begins alike, without the zxid.
    let answer = [&out[4..8], &out[16..48]].concat();
    let connected = Connected { timeout_ms: 1000, session: 9, password: connect.password };
    assert_eq!(Body::new(&answer).connected(), Ok(connected));
    assert!(Body::new(&answer[..30]).connected().is_err());
}

fn stat() -> Vec<u8> {
    let mut out = Vec::new();
    [11, 12, 13, 14].iter().for_each(|long| put_long(&mut out, *long));
    [15, 16, 17].iter().for_each(|int| put_int(&mut out, *int));
    put_long(&mut out, 18);
    [19, 20].iter().for_each(|int| put_int(&mut out, *int));
    put_long(&mut out, 21);
    out
}

#[test]
fn answers_are_read_as_servers_write_them() {
    let mut out = Vec::new();
    put_multi_header(&mut out, 4, false);
    put_buffer(&mut out, None);
    out.extend(stat());
    put_multi_header(&mut out, -1, false);
    put_int(&mut out, error::NO_NODE);
    put_multi_header(&mut out, 4, false);
    put_buffer(&mut out, Some(b"v"));
    out.extend(stat());
    put_multi_header(&mut out, -1, true);
    let numbers = Stat { czxid: 11, mzxid: 12, version: 15, aversion: 17, children: 20 };
    let found = vec![Ok((None, numbers)), Err(error::NO_NODE), Ok((Some(Bytes::from("v")), numbers))];
    assert_eq!(Body::new(&out).data(), Ok(found));
    assert!(Body::new(&out[..out.len() - 1]).data().is_err());
    let list = [0, 0, 0, 8, 0, 255, 255, 255, 255];
    assert!(Body::new(&list).data().is_err_and(|error| error.to_string().contains("of kind 8")));

    let mut out = Vec::new();
    put_int(&mut out, 2);
    put_buffer(&mut out, Some(b"a"));
    put_buffer(&mut out, Some(b"b"));
    assert_eq!(Body::new(&out).children(), Ok(vec!["a".into(), "b".into()]));

    let word = |kind: i32| {
        let mut out = Vec::new();
        put_int(&mut out, kind);
        put_int(&mut out, 3);
        put_buffer(&mut out, Some(b"/a"));
        Body::new(&out).watched()
    };
    assert_eq!(word(2), Ok((Watched::Changed, "/a".into())));
    assert_eq!(word(4), Ok((Watched::Other, "/a".into())));

    let mut header = Body::new(&[255, 255, 255, 254, 0, 0, 0, 0, 0, 0, 0, 8, 255, 255, 255, 155]);
    assert_eq!(header.header(), Ok(ReplyHeader { xid: PING_XID, zxid: 8, error: error::NO_NODE }));
}

#[test]
fn a_multi_tells_which_step_failed() {
    let mut done = Vec::new();
    put_multi_header(&mut done, 13, false);
    put_multi_header(&mut done, 5, false);
    done.extend(stat());
    put_multi_header(&mut done, 1, false);
    put_buffer(&mut done, Some(b"/a"));
    put_multi_header(&mut done, -1, true);
    assert_eq!(Body::new(&done).multi(), Ok(None));

    let mut failed = Vec::new();
    for code in [error::OK, error::BAD_VERSION, -2] {
        put_multi_header(&mut failed, -1, false);
        put_int(&mut failed, code);
    }
    put_multi_header(&mut failed, -1, true);
    assert_eq!(Body::new(&failed).multi(), Ok(Some((1, error::BAD_VERSION))));
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Some(body)) = read_packet(&bytes) {
            prop_assert!(body.len() + LENGTH_BYTES <= bytes.len());
        }
        let body = Body::new(&bytes);
        let _ = (body.connected(), body.watched(), body.multi());
        prop_assert!(body.data().map_or(true, |found| found.len() * 13 <= bytes.len()));
        prop_assert!(body.children().is_ok_and(|names| names.len() * 4 <= bytes.len()) || body.children().is_err());
    }

    #[test]
    fn a_length_that_makes_no_sense_is_refused(length in prop::num::i32::ANY) {
        let bytes = length.to_be_bytes();
        let found = read_packet(&bytes);
        match usize::try_from(length) {
            Ok(length) if length <= MAX_REPLY_BYTES => prop_assert_eq!(found.unwrap().is_some(), length == 0),
            _ => prop_assert!(found.is_err()),
        }
    }
}
