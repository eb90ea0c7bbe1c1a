//! The host is found in what the compiler prints.

use super::*;

#[test]
fn the_host_is_found_in_what_the_compiler_prints() {
    let printed =
        "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\n";
    assert_eq!(host(printed).expect("a host"), "x86_64-unknown-linux-gnu");
    assert!(host("rustc 1.95.0").is_err());
}
