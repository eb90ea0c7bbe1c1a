//! A node with keys, or with users, leaves no core file; the setting allows it. No test takes the flag back.

use super::*;
use rustix::process::dumpable_behavior;

#[test]
fn keys_and_users_are_secrets_unless_core_files_are_allowed() {
    let of = |text: &str| NodeConfig::from_toml(text, "node.toml").expect("settings");
    for plain in ["", "server_id = 2"] {
        assert!(!Secrecy::of(&of(plain)).is_done, "{plain}: nothing is secret yet");
    }
    let tls = "tls_ca = \"a\"\ntls_certificate = \"b\"\ntls_key = \"c\"\n";
    for keys in [tls, "encryption_key_file = \"k\"", "encryption_key_command = [\"cat\", \"k\"]"] {
        assert!(Secrecy::of(&of(keys)).is_done, "{keys}");
        assert_eq!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable));
    }
    // Nothing is left to do for a node whose operator wants core files.
    assert!(Secrecy::of(&of("core_dumps = true")).is_done);
    assert!(!of(&format!("{tls}core_dumps = false")).secrecy.core_dumps);
}
