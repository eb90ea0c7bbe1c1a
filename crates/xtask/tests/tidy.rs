//! The repository obeys its own rules.

use leeward_xtask::tidy;

#[test]
fn the_repository_is_tidy() {
    let violations = tidy::check(&tidy::workspace_root()).expect("the repository can be read");
    let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} violations:\n{}", list.len(), list.join("\n"));
}
