//! Cargo as it is outside of `cargo xtask`.
//!
//! Cargo describes the package of a program that it runs in the program's environment. Build scripts look at these variables:
//! with them Cargo builds again what it has built without them, and without them once more.

use std::ffi::OsStr;
use std::process::Command;

/// How the names of these variables begin.
const OF_A_PACKAGE: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];

/// `cargo`, which does not know the package of this program.
pub fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_a_package(name)) {
        cargo.env_remove(name);
    }
    cargo
}

fn is_of_a_package(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| OF_A_PACKAGE.iter().any(|of| name.starts_with(of)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cargo runs tests as it runs programs.
    #[test]
    fn cargo_is_not_told_of_this_package() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "run by cargo test");
        let cargo = cargo();
        let removed: Vec<_> = cargo.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert!(removed.contains(&OsStr::new("CARGO_PKG_NAME")) && removed.contains(&OsStr::new("CARGO_MANIFEST_DIR")));
        assert!(!is_of_a_package(OsStr::new("CARGO_HOME")) && !is_of_a_package(OsStr::new("CARGO_TARGET_DIR")));
    }
}
