//! Every kind of reply, byte for byte, in both versions.

use super::*;

fn both(reply: &Reply) -> (String, String) {
    let encode = |protocol| {
        let mut out = BytesMut::new();
        reply.encode(protocol, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    };
    (encode(Protocol::Resp2), encode(Protocol::Resp3))
}

#[track_caller]
fn same(reply: &Reply, expected: &str) {
    assert_eq!(both(reply), (expected.to_owned(), expected.to_owned()));
}

#[test]
fn what_both_versions_share() {
    same(&Reply::OK, "+OK\r\n");
    same(&Reply::Integer(0), ":0\r\n");
    same(&Reply::Integer(-15), ":-15\r\n");
    same(&Reply::Integer(i64::MIN), ":-9223372036854775808\r\n");
    same(&Reply::Integer(i64::MAX), ":9223372036854775807\r\n");
    same(&Reply::text(""), "$0\r\n\r\n");
    same(&Reply::text("a\r\nb"), "$4\r\na\r\nb\r\n");
    same(&Reply::err("bad\r\nthing"), "-ERR bad  thing\r\n");
    same(&Reply::Array(vec![Reply::Integer(1), Reply::OK]), "*2\r\n:1\r\n+OK\r\n");
    same(&Reply::Keys(vec!["a".into(), "bc".into()]), "*2\r\n$1\r\na\r\n$2\r\nbc\r\n");
}

#[test]
fn what_version_3_has_types_for() {
    assert_eq!(both(&Reply::Null), ("$-1\r\n".into(), "_\r\n".into()));
    assert_eq!(both(&Reply::NullArray), ("*-1\r\n".into(), "_\r\n".into()));
    let map = Reply::Map(vec![(Reply::text("k"), Reply::Integer(1)), (Reply::text("n"), Reply::Null)]);
    let (two, three) = ("*4\r\n$1\r\nk\r\n:1\r\n$1\r\nn\r\n$-1\r\n", "%2\r\n$1\r\nk\r\n:1\r\n$1\r\nn\r\n_\r\n");
    assert_eq!(both(&map), (two.into(), three.into()));
    let set = Reply::Set(vec![Reply::Simple("fast")]);
    assert_eq!(both(&set), ("*1\r\n+fast\r\n".into(), "~1\r\n+fast\r\n".into()));
    let text = Reply::Verbatim("hi\n".into());
    assert_eq!(both(&text), ("$3\r\nhi\n\r\n".into(), "=7\r\ntxt:hi\n\r\n".into()));
    let entries = Reply::Entries(vec![("a".into(), "1".into()), ("b".into(), "".into())]);
    assert_eq!(
        both(&entries),
        (
            "*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$0\r\n\r\n".into(),
            "*2\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n*2\r\n$1\r\nb\r\n$0\r\n\r\n".into()
        )
    );
}
