//! The answer of an admin port, whole, odd and hostile.

use super::parse;

#[test]
fn takes_the_status_and_the_body() {
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nno\n";
    assert_eq!(parse(answer), Some((503, b"no\n".to_vec())));
    assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\n"), Some((200, Vec::new())));
}

#[test]
fn refuses_what_is_not_http() {
    for answer in
        [&b""[..], b"\r\n\r\n", b"HTTP/1.1 two hundred\r\n\r\n", b"HTTP/1.1 200 OK", b"+PONG\r\n\r\n", b"\xff\r\n\r\n"]
    {
        assert_eq!(parse(answer), None, "{answer:?}");
    }
}
