//! Tests of lists of keys.

use super::*;

const ONE: &str = "0101010101010101010101010101010101010101010101010101010101010101";
const TWO: &str = "02020202020202020202020202020202020202020202020202020202020202fF";

fn refused(text: &str) -> String {
    Secrets::parse(text, "keys").unwrap_err().to_string()
}

#[test]
fn the_last_line_is_the_current_key_and_all_are_found_by_name() {
    let secrets = Secrets::parse(&format!("# old\n2025 {ONE}\n\n  2026\t{TWO}  \n"), "keys").unwrap();
    assert_eq!(secrets.current().0, "2026");
    assert_eq!((secrets.current().1[0], secrets.current().1[31]), (2, 0xff));
    assert_eq!(**secrets.get("2025").unwrap(), [1; 32]);
    assert!(secrets.get("2024").is_none());
}

#[test]
fn a_wrong_line_is_named_and_never_quoted() {
    for text in [format!("a {ONE}\nb {ONE}00\n"), format!("a {ONE}\nb {ONE} c\n"), format!("a {ONE}\n{TWO}\n")] {
        let error = refused(&text);
        assert_eq!(error, "keys: line 2: must be a name and 64 hexadecimal digits");
    }
    assert_eq!(refused(&format!("a {ONE}\na {TWO}")), "keys: line 2: there is a key a already");
    assert_eq!(refused("# none\n"), "keys: has no key");
    assert!(refused(&format!("{} {ONE}", "n".repeat(65))).contains("at most 64 bytes"));
}

#[test]
fn debug_output_has_names_only() {
    let shown = format!("{:?}", Secrets::parse(&format!("a {ONE}"), "keys").unwrap());
    assert_eq!(shown, r#"Secrets { names: ["a"], origin: "keys" }"#);
}

#[test]
fn a_file_and_a_command_give_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    std::fs::write(&path, format!("a {ONE}\n")).unwrap();
    let of_file = Secrets::from_file(&path).unwrap();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let of_command = Secrets::from_command(&words(&["cat", &path.display().to_string()])).unwrap();
    assert_eq!(of_file.current(), of_command.current());
    assert!(Secrets::from_file(&directory.path().join("none")).unwrap_err().to_string().contains("none"));
    let failed = Secrets::from_command(&words(&["false"])).unwrap_err();
    assert!(failed.to_string().starts_with("false: it failed"), "{failed}");
    assert!(Secrets::from_command(&words(&["/no/such/program"])).unwrap_err().to_string().contains("/no/such"));
    std::fs::write(&path, vec![b'#'; 70_000]).unwrap();
    assert!(Secrets::from_file(&path).unwrap_err().to_string().contains("no list of keys"));
}
