//! Passwords are checked by their hashes, and hashes with costs that nobody could bear are not.

use super::*;

#[test]
fn a_hash_is_of_its_password_only() {
    let (good, other) = (Password::new(b"correct horse"), Password::new(b"correct horsf"));
    let (first, second) = (hash(&good), hash(&good));
    assert_ne!(first, second, "each has its salt");
    assert!(first.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{first}");
    assert_eq!(check_hash(&first), Ok(()));
    assert!(verify(&good, &first) && verify(&good, &second));
    assert!(!verify(&other, &first) && !verify(&Password::new(b""), &first));
    verify_nothing(&good);
}

#[test]
fn hashes_that_cost_too_much_or_are_none_are_refused() {
    let salt_and_hash = "c2FsdHNhbHQ$bm90IGEgaGFzaCBvZiBhbnl0aGluZyBhdCBhbGw";
    for (bad, why) in [
        (String::new(), "no PHC string"),
        ("$argon2id$v=19$m=19456,t=2,p=1".into(), "no hash of argon2id"),
        (format!("$argon2i$v=19$m=19456,t=2,p=1${salt_and_hash}"), "no hash of argon2id"),
        (format!("$argon2id$v=19$m=4194304,t=2,p=1${salt_and_hash}"), "its costs are m=4194304"),
        (format!("$argon2id$v=19$m=19456,t=1000,p=1${salt_and_hash}"), "its costs are"),
        (format!("$argon2id$v=19$m=19456,t=2,p=64${salt_and_hash}"), "its costs are"),
        ("5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8".into(), "no PHC string"),
    ] {
        let refused = check_hash(&bad).expect_err(&bad);
        assert!(refused.starts_with(why), "{bad}: {refused}");
        assert!(!verify(&Password::new(b"x"), &bad));
    }
}

#[test]
fn generated_passwords_differ_and_are_shown_by_nothing() {
    let (one, other) = (Password::generate(), Password::generate());
    assert_ne!(one, other);
    assert_eq!(one.bytes().len(), 64);
    let credentials = Credentials { user: "alice".into(), password: one };
    let shown = format!("{credentials:?} {:?}", MemoryKey::generate());
    assert_eq!(shown, "Credentials { user: \"alice\", password: Password(..) } MemoryKey(..)");
}

#[test]
fn marks_depend_on_key_user_and_password() {
    let (key, other) = (MemoryKey::generate(), MemoryKey::generate());
    let password = Password::new(b"pw");
    let mark = key.mark("alice", &password);
    assert_eq!(mark, key.mark("alice", &password));
    assert_ne!(mark, other.mark("alice", &password));
    assert_ne!(mark, key.mark("alic", &Password::new(b"epw")));
    assert_ne!(mark, key.mark("alice", &Password::new(b"pw2")));
}

#[test]
fn headers_are_read_as_they_are_written() {
    let credentials = Credentials { user: "alice".into(), password: Password::new(b"a:b\xff c") };
    assert_eq!(Credentials::of_header(credentials.header().as_bytes()), Some(credentials));
    // RFC 7617.
    let aladdin = Credentials { user: "Aladdin".into(), password: Password::new(b"open sesame") };
    assert_eq!(&*aladdin.header(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    let bearer = Credentials::of_header(b"bearer a.b@c.0f1e");
    assert_eq!(bearer, Some(Credentials { user: "a.b@c".into(), password: Password::new(b"0f1e") }));
    let long = format!("Bearer a.{}", "x".repeat(4096));
    for none in
        [&b""[..], b"Basic", b"Basic !!!", b"Basic YWJj", b"Bearer abc", b"Digest x.y", b"\xff\xfe", long.as_bytes()]
    {
        assert_eq!(Credentials::of_header(none), None, "{}", none.escape_ascii());
    }
}
