//! Lines of pairs, good and bad, and an embedded store.

use super::*;

fn written(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("pairs");
    std::fs::write(&file, text).expect("it is written");
    (directory, file)
}

fn pairs(text: &str) -> Result<Vec<Pair>, String> {
    let (_directory, file) = written(text);
    let lines = Lines::open(&file).expect("it is there");
    lines
        .collect::<Result<_, _>>()
        .map_err(|error: Failure| error.to_string().replace(file.to_str().unwrap_or(""), "F"))
}

const NO_KEYS: Keys = Keys { key_file: None };

#[test]
fn every_byte_survives_the_way_out_and_back() {
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(unescaped(all.escape_ascii().to_string().as_bytes()), Ok(all));
    assert!(unescaped(b"\\x1").is_err() && unescaped(b"\\q").is_err() && unescaped(b"\\").is_err());
}

#[test]
fn lines_are_pairs_and_errors_name_them() {
    let pair = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
    assert_eq!(pairs("a\t1\nb\\t\t\n"), Ok(vec![pair("a", "1"), pair("b\t", "")]));
    assert_eq!(pairs(""), Ok(Vec::new()));
    assert_eq!(pairs("a\t1\nb 2\n"), Err("F, line 2: there is no tab between a key and a value".into()));
    let unsorted = "F, line 3: key \"a\" does not come after the one before: keys must ascend";
    assert_eq!(pairs("a\t1\nb\t2\na\t3\n"), Err(unsorted.into()));
    let missing = Lines::open(Path::new("no/such/file")).map(drop).expect_err("it is not there").to_string();
    assert!(missing.starts_with("no/such/file: No such file"), "{missing}");
}

#[test]
fn a_store_takes_all_pairs_or_none() {
    let (directory, file) = written("a\t1\nb\t2\nc\t3\n");
    let store = directory.path().join("store");
    assert_eq!(into_store(&store, &NO_KEYS, &mut Lines::open(&file).unwrap()).unwrap(), 3);
    let found: Vec<Pair> = StorePairs::open(&store, &NO_KEYS).unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), 3);
    let (_other, bad) = written("d\t1\nc\t2\n");
    let error = into_store(&store, &NO_KEYS, &mut Lines::open(&bad).unwrap()).unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
    assert_eq!(StorePairs::open(&store, &NO_KEYS).unwrap().count(), 3);
    assert!(StorePairs::open(directory.path(), &NO_KEYS).is_err());
}
