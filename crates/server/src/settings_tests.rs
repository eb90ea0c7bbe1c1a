//! The settings, the file that nodes read and the page that explains them agree.

use super::*;
use crate::NodeConfig;
use std::collections::BTreeSet;

#[test]
fn every_setting_of_the_file_is_explained_and_no_other() {
    let refusal = NodeConfig::from_toml("no_such_setting = 1", "x").unwrap_err().to_string();
    let known = refusal.split_once("expected one of").expect("it says which there are").1;
    let known: BTreeSet<&str> = known.split('`').skip(1).step_by(2).collect();
    let explained: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
    assert_eq!((explained.len(), explained), (SETTINGS.len(), known));
}

/// A setting that is the same on all nodes is compared by them, so that another value does not go unnoticed.
#[test]
fn what_is_to_be_the_same_on_all_nodes_is_told_to_the_others() {
    let says_so = SETTINGS.iter().filter(|setting| setting.explanation.contains("The same on all nodes"));
    assert_eq!(says_so.map(|setting| setting.name).collect::<Vec<_>>(), SHARED);
    let told = NodeConfig::from_toml("balance = false\nredis_table = \"carts\"", "x").expect("settings");
    let told = told.shared_settings(1 << 20);
    assert_eq!(told.keys().map(String::as_str).collect::<BTreeSet<_>>(), SHARED.iter().copied().collect());
    assert_eq!(
        ["balance", "redis_table", "segment_bytes"].map(|name| told[name].as_str()),
        ["false", "\"carts\"", "1048576"]
    );
}

#[test]
fn the_page_says_the_same() {
    let page = include_str!("../../../docs/configuration.md");
    let rows: Vec<&str> = page.lines().take_while(|line| !line.starts_with("## Of a table")).collect();
    let rows: Vec<&str> = rows.into_iter().filter(|line| line.starts_with("| `")).collect();
    let row = |setting: &Setting| {
        let Setting { name, default, allowed, explanation } = setting;
        format!("| `{name}` | {default} | {allowed} | {explanation} |")
    };
    assert_eq!(rows, SETTINGS.iter().map(row).collect::<Vec<_>>());
}

#[test]
fn numbers_at_the_ends_of_their_ranges_are_taken_and_those_beyond_are_not() {
    for setting in SETTINGS {
        let Some(range) = setting.allowed.range() else { continue };
        let with = |value: u64| NodeConfig::from_toml(&format!("{} = {value}", setting.name), "x");
        for value in [*range.start(), *range.end()] {
            with(value).unwrap_or_else(|error| panic!("{error}"));
        }
        let too_low = range.start().checked_sub(1).map(with);
        for refused in [with(range.end() + 1)].into_iter().chain(too_low) {
            let refused = refused.expect_err(setting.name).to_string();
            assert!(refused.contains(&format!("it must be from {} to {}", range.start(), range.end())), "{refused}");
        }
    }
}

#[test]
fn numbers_and_sizes_are_written_as_people_do() {
    let written = [Allowed::Number(0..=1_000_000), Allowed::Number(10..=999), Allowed::Bytes(4096..=3 << 20, ", odd")];
    assert_eq!(written.map(|allowed| allowed.to_string()), ["0 to 1,000,000", "10 to 999", "4 KiB to 3 MiB, odd"]);
}
