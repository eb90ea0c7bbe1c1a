//! Golden files: lines of hex bytes, each with a label after `#`; `00*7` is seven zeroes. With `LEEWARD_GOLDEN=print` the
//! bytes are printed as they are now.

/// The bytes of a golden file.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let bytes = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let run = |word: &str| {
        let (byte, count) = word.split_once('*').unwrap_or((word, "1"));
        vec![u8::from_str_radix(byte, 16).expect("two hex digits"); count.parse().expect("a count")]
    };
    bytes.flat_map(str::split_whitespace).flat_map(run).collect()
}

/// `written` is what the golden file `text` has.
pub(crate) fn check(name: &str, text: &str, written: &[u8]) {
    if std::env::var_os("LEEWARD_GOLDEN").is_some() {
        println!("{name}:");
        for line in written.chunks(16) {
            println!("{}", line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "));
        }
    }
    assert!(bytes(text) == written, "{name}: the format changed; see docs/formats");
}
