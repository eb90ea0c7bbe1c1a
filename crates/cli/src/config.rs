//! `leeward config`: the settings that a node would run with, and the explanation of each setting.

use crate::Outcome;
use crate::args::setting;
use clap::Args;
use leeward_server::NodeConfig;
use leeward_server::settings::{self, SETTINGS, Setting};
use std::path::PathBuf;

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;

/// Width of an explanation.
const WIDTH: usize = 100;

#[derive(Args, Debug)]
#[command(after_help = "\
Without --explain, the command checks the settings that a node would run with and prints them as a TOML file, with defaults and
derived values filled in. With --explain, it prints every setting with its default, its allowed values and its meaning. All of
that is comments, so it can serve as a first node.toml.

Examples:
  leeward config --config node.toml            check the file, and show the settings that result
  leeward config --explain                     every setting
  leeward config --explain lease_ms            one setting
  leeward config --explain > node.toml         a file to start from")]
pub(crate) struct ConfigArgs {
    /// Explain every setting, or only this one
    #[arg(long, value_name = "NAME", num_args = 0..=1, conflicts_with_all = ["config", "settings"])]
    explain: Option<Option<String>>,
    /// TOML file with the node's settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting, which overrides the file; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

pub(crate) fn run(args: &ConfigArgs) -> Outcome {
    match &args.explain {
        Some(None) => print!("{}", SETTINGS.iter().map(explained).collect::<Vec<_>>().join("\n")),
        Some(Some(name)) => {
            let names = || SETTINGS.iter().map(|setting| setting.name).collect::<Vec<_>>().join(", ");
            let found = settings::find(name);
            print!(
                "{}",
                explained(found.ok_or_else(|| format!("there is no setting {name:?}; the settings are {}", names()))?)
            );
        }
        None => print!("{}", NodeConfig::load(args.config.as_deref(), &args.settings)?.to_toml()),
    }
    Ok(true)
}

/// A setting as comments of a file, followed by the line that would set its default.
fn explained(setting: &Setting) -> String {
    let whole = format!("{} (default: {})\n{}", setting.allowed, setting.default, plain(setting.explanation));
    let lines = whole.lines().flat_map(wrapped).map(|line| format!("# {line}\n"));
    lines.chain([format!("#{}\n", default_line(setting.name))]).collect()
}

/// `name = value` with the default; without a value where the default depends on others.
fn default_line(name: &str) -> String {
    let defaults = toml::Table::try_from(NodeConfig::default()).expect("settings are numbers and texts");
    match defaults.get(name) {
        Some(value) => format!("{name} = {value}"),
        None => format!("{name} ="),
    }
}

/// Markdown without its links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, linked)) = rest.split_once('[') {
        let link = linked.split_once("](").and_then(|(label, after)| Some((label, after.split_once(')')?.1)));
        let (label, after) = link.unwrap_or(("[", linked));
        plain.extend([before, label]);
        rest = after;
    }
    plain + rest
}

fn wrapped(line: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split_whitespace() {
        let last = lines.last_mut().expect("never empty");
        if !last.is_empty() && last.len() + 1 + word.len() > WIDTH {
            lines.push(word.into());
        } else {
            *last += if last.is_empty() { "" } else { " " };
            *last += word;
        }
    }
    lines
}
