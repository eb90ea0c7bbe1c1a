//! One word for each thing, the field's own: words that this project used before, and their replacements.
//!
//! The list is matched whole word by whole word and without regard to case, in code, comments, strings and documents alike. An
//! identifier is split at underscores and where its case changes, so `old_office`, `OldOffice` and "the old office" are all
//! found. The words of a phrase may stand on two lines of a comment. File names count as well. This file and its tests are
//! exempt.
//!
//! Pure.

use super::{Repository, Violation};
use std::collections::BTreeMap;
use std::path::Path;

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;

/// The list and its tests, which are not searched.
const EXEMPT: [&str; 2] = ["crates/xtask/src/tidy/words.rs", "crates/xtask/src/tidy/words_tests.rs"];
/// Files that are searched, by the ends of their names.
const EXTENSIONS: [&str; 6] = ["rs", "md", "html", "sh", "py", "toml"];
/// Bytes that may be between the words of a phrase: spaces, line breaks, and the marks of comments, lists and
/// identifiers.
const JOINING: &[u8] = b" \t\r\n_-/!#*\\";

/// Words and phrases, and what to say instead.
const BANNED: [(&[&str], &str); 33] = [
    (&["office", "offices"], "the primary role; to become primary"),
    (&["heir", "heirs"], "the transfer target, or a promotion candidate"),
    (&["yielded"], "relinquished"),
    (&["voided"], "released"),
    (&["wish", "wishes", "wished", "wishing"], "the desired state, or a request"),
    (&["stand still", "stands still", "stood still", "standing still"], "quiesce"),
    (&["come to rest", "comes to rest", "came to rest", "coming to rest"], "quiesce"),
    (&["restless"], "active"),
    (&["unforeseen"], "missed, as in missed wakeups"),
    (&["vouch", "vouches", "vouched", "vouching"], "publish the safe LSN"),
    (&["attest", "attests", "attested", "attesting", "attestation", "attestations"], "publish the safe LSN"),
    (&["unborn"], "pending child"),
    (&["beget", "begets", "begot", "begotten"], "create a child"),
    (&["taker", "takers"], "the merge target"),
    (&["docket", "dockets"], "the work queue"),
    (&["ruling"], "acting as master"),
    (&["disclaim", "disclaims", "disclaimed", "disclaiming"], "deregister"),
    (&["misfit", "misfits"], "an incompatible server"),
    (&["twin", "twins"], "a duplicate server id, or a copy"),
    (&["crowded"], "out of space"),
    (&["mourn", "mourns", "mourned", "mourning"], "the grace period after the loss of a server"),
    (&["futile"], "failed, or without effect"),
    (&["habits"], "the client mix, or the workload"),
    (&["troubles"], "the fault schedule"),
    (&["essence"], "the counterexample"),
    (&["shelf", "shelves"], "the saved copies"),
    (&["guests"], "the sessions"),
    (&["farewell"], "the drain of connections"),
    (&["whoever"], "the thing itself: the caller, the node, the client"),
    (&["patience"], "the timeout"),
    (&["make way", "makes way", "made way", "making way"], "step aside"),
    (&["carry out", "carries out", "carried out", "carrying out"], "execute, of an operation; else start, do, follow"),
    (&["division", "divisions", "divided", "divides"], "split"),
];

pub(super) fn check(repository: &Repository, violations: &mut Vec<Violation>) {
    let entries = by_first_word();
    for (file, text) in repository.files.iter().filter(|(file, _)| !is_exempt(file)) {
        let mut broken = |line: usize, (entry, instead): Entry| {
            violations.push(Violation { file: file.clone(), line, what: format!("{entry}: say {instead}") });
        };
        find(&entries, &file.to_string_lossy(), |_, entry| broken(0, entry));
        if is_searched(file) {
            find(&entries, text, &mut broken);
        }
    }
}

fn is_exempt(file: &Path) -> bool {
    EXEMPT.iter().any(|exempt| file == Path::new(exempt))
}

fn is_searched(file: &Path) -> bool {
    file.extension().is_some_and(|found| EXTENSIONS.iter().any(|extension| found == *extension))
}

/// A word or a phrase of the list, and what to say instead.
type Entry = (&'static str, &'static str);

/// The list, by the first word of each entry.
fn by_first_word() -> BTreeMap<&'static str, Vec<Entry>> {
    let mut entries: BTreeMap<&str, Vec<Entry>> = BTreeMap::new();
    for (banned, instead) in BANNED {
        for entry in banned.iter().copied() {
            let first = entry.split(' ').next().unwrap_or(entry);
            entries.entry(first).or_default().push((entry, instead));
        }
    }
    entries
}

/// Calls `found` with the line and the entry of each occurrence in `text` of an entry of the list.
fn find(entries: &BTreeMap<&'static str, Vec<Entry>>, text: &str, mut found: impl FnMut(usize, Entry)) {
    let words = words(text);
    for (at, word) in words.iter().enumerate() {
        let candidates = entries.get(word.text.to_ascii_lowercase().as_str());
        for entry in candidates.into_iter().flatten().filter(|(entry, _)| continues(&words[at + 1..], entry)) {
            found(word.line, *entry);
        }
    }
}

/// Whether `next` begins with all of `phrase` but its first word.
fn continues(next: &[Word<'_>], phrase: &str) -> bool {
    let mut next = next.iter();
    phrase
        .split(' ')
        .skip(1)
        .all(|part| next.next().is_some_and(|word| word.is_joined && word.text.eq_ignore_ascii_case(part)))
}

/// A word of prose, or one of those that an identifier is made of.
#[derive(Debug, PartialEq, Eq)]
struct Word<'a> {
    text: &'a str,
    /// From 1.
    line: usize,
    /// Only bytes of [`JOINING`] are between it and the word before.
    is_joined: bool,
}

/// All words of `text`, in their order. An escape such as `\n` belongs to no word.
fn words(text: &str) -> Vec<Word<'_>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut line, mut is_joined) = (0, 1, false);
    while at < bytes.len() {
        let end = end_of_word(bytes, at);
        if end > at {
            found.push(Word { text: &text[at..end], line, is_joined });
            (at, is_joined) = (end, true);
        } else {
            line += usize::from(bytes[at] == b'\n');
            is_joined &= JOINING.contains(&bytes[at]);
            let is_escape = bytes[at] == b'\\' && bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic);
            at += 1 + usize::from(is_escape);
        }
    }
    found
}

/// Where the word that begins at `start` ends: at the last of its letters, or before the capital that begins another word, as in
/// `aB` and in `ABc`. It is `start` where no word begins.
fn end_of_word(bytes: &[u8], start: usize) -> usize {
    let is_letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
    let is_capital = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_uppercase);
    let is_small = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_lowercase);
    let mut end = start;
    while is_letter(end) {
        end += 1;
        if is_capital(end) && (is_small(end - 1) || is_small(end + 1)) {
            break;
        }
    }
    end
}
