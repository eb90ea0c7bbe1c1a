//! `leeward config`: what a node would run with, and what each setting is.

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
Without --explain the settings that a node would run with are checked and printed, as a TOML file, with the defaults and what
follows from them. With it, every setting with its default, what it may be and what it is, as a file to begin with: all of it is
comments.

Examples:
  leeward config --config node.toml            is the file right, and what does it come to?
  leeward config --explain                     every setting
  leeward config --explain lease_ms            this one
  leeward config --explain > node.toml         a file to begin with")]
pub(crate) struct ConfigArgs {
    /// Explain every setting, or this one
    #[arg(long, value_name = "NAME", num_args = 0..=1, conflicts_with_all = ["config", "settings"])]
    explain: Option<Option<String>>,
    /// TOML file with the node's settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting, which wins over the file's
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
                explained(found.ok_or_else(|| format!("there is no setting {name:?}; there are {}", names()))?)
            );
        }
        None => print!("{}", NodeConfig::load(args.config.as_deref(), &args.settings)?.to_toml()),
    }
    Ok(true)
}

/// A setting as comments of a file, with the line that would set its default.
fn explained(setting: &Setting) -> String {
    let whole = format!("{} (default: {})\n{}", setting.allowed, setting.default, plain(setting.explanation));
    let lines = whole.lines().flat_map(wrapped).map(|line| format!("# {line}\n"));
    lines.chain([format!("#{}\n", default_line(setting.name))]).collect()
}

/// `name = value` with the default; with nothing where that depends.
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
