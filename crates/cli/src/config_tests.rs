//! A node accepts the output of the command as its settings file.

use super::*;

#[test]
fn the_explanation_is_a_file_of_defaults_once_the_comments_are_gone() {
    let text: String = SETTINGS.iter().map(explained).collect();
    assert!(text.lines().all(|line| line.starts_with('#') && line.len() <= WIDTH + 2), "{text}");
    assert_eq!(NodeConfig::from_toml(&text, "x").unwrap(), NodeConfig::default());
    let set = text.lines().filter_map(|line| line.strip_prefix('#').filter(|line| !line.starts_with(' ')));
    let set: Vec<&str> = set.collect();
    assert_eq!(set.len(), SETTINGS.len());
    let given: Vec<&str> = set.into_iter().filter(|line| !line.ends_with('=')).collect();
    assert_eq!(NodeConfig::from_toml(&given.join("\n"), "x").unwrap(), NodeConfig::default());
}

#[test]
fn what_a_node_would_run_with_is_a_file_that_comes_to_the_same() {
    let config = NodeConfig::from_toml("server_id = 3\nfabric = \"libfabric:tcp\"\nrings = \"off\"", "x").unwrap();
    let text = config.to_toml();
    assert!(text.contains("resp_listen = \"127.0.0.1:7381\""), "{text}");
    let again = NodeConfig::from_toml(&text, "x").unwrap();
    assert_eq!(
        (again.to_toml(), again.network.fabric, again.rings.rings),
        (text, config.network.fabric, config.rings.rings)
    );
}

#[test]
fn links_are_left_out_of_what_is_printed() {
    assert_eq!(plain("for [what it has](operations.md#memory): `[::]`, [x"), "for what it has: `[::]`, [x");
}
