//! Keys to which each write appends a unique word. An append that is executed twice leaves its word twice. The
//! length that an append answers says where its word ends. The word stays there for ever.

use bytes::Bytes;
use leeward_format::op::Op;
use leeward_platform::Rng;
use std::collections::BTreeMap;

/// Bytes of each word.
const WORD_BYTES: usize = 32;
/// Words of one key; then another takes its place.
const WORDS: usize = 32;

/// A set of words of one key. Bit `n` is the word of the `n`th append.
type Words = u32;

/// All keys that are appended to, in the order of their first appends.
#[derive(Debug, Default)]
pub(crate) struct Appended {
    keys: Vec<Key>,
    /// Appends that were made.
    words: usize,
    /// A loss of power may have taken writes.
    may_lose: bool,
}

#[derive(Debug, Default)]
struct Key {
    not_done: Words,
    acknowledged: Words,
    /// By word: the number of words before it, if its append was answered.
    positions: [Option<usize>; WORDS],
}

/// The key with this number. A third of the keys are on one side of the split.
fn key(number: usize) -> Bytes {
    let side = if number.is_multiple_of(3) { "w" } else { "c" };
    Bytes::from(format!("{side}{number:06}"))
}

fn word(number: usize) -> String {
    format!("{number:08}{}", "w".repeat(WORD_BYTES - 8))
}

/// The number of the word with these bytes.
fn number_of(bytes: &[u8]) -> Option<usize> {
    let number = std::str::from_utf8(bytes.get(..8)?).ok()?.parse().ok()?;
    (word(number).as_bytes() == bytes).then_some(number)
}

impl Appended {
    /// The append of a new word.
    pub(crate) fn write(&mut self) -> (Op, usize) {
        let number = self.words;
        self.words += 1;
        self.keys.resize_with(self.words.div_ceil(WORDS), Key::default);
        (Op::Append { key: key(number / WORDS), suffix: word(number).into() }, number)
    }

    /// An append answered this length.
    pub(crate) fn acknowledged(&mut self, number: usize, length: i64) -> Result<(), String> {
        let length = usize::try_from(length).unwrap_or_default();
        let place = (length / WORD_BYTES).checked_sub(1).filter(|_| length.is_multiple_of(WORD_BYTES));
        let key = &mut self.keys[number / WORDS];
        key.acknowledged |= 1 << (number % WORDS);
        key.positions[number % WORDS] = place;
        place.map(drop).ok_or_else(|| format!("word {number} was appended, to a length of {length} bytes"))
    }

    pub(crate) fn not_done(&mut self, number: usize) {
        self.keys[number / WORDS].not_done |= 1 << (number % WORDS);
    }

    /// The newest writes may be gone.
    pub(crate) fn power_lost(&mut self) {
        self.may_lose = true;
    }

    /// The read of one of the last keys, its number, and the words that must be found.
    pub(crate) fn read(&self, rng: &mut Rng) -> Option<(Op, usize, Words)> {
        let newest = self.keys.len().checked_sub(1)?;
        let number = newest - rng.index(self.keys.len().min(3));
        Some((Op::Get { key: key(number) }, number, self.keys[number].acknowledged))
    }

    /// Judges the value that was `found` at a key. It must have the words `must`.
    pub(crate) fn check(&self, number: usize, must: Words, found: Option<&Bytes>) -> Result<(), String> {
        let fails = |what: String| Err(format!("key {:?}: {what}", key(number)));
        let (of_key, mut seen): (_, Words) = (&self.keys[number], 0);
        for (place, bytes) in found.map_or(&[][..], |found| found).chunks(WORD_BYTES).enumerate() {
            let Some(word) = number_of(bytes).filter(|word| word / WORDS == number && *word < self.words) else {
                return fails(format!("no client appended {:?}", String::from_utf8_lossy(bytes)));
            };
            let bit: Words = 1 << (word % WORDS);
            if seen & bit != 0 {
                return fails(format!("word {word} was appended twice"));
            }
            if of_key.not_done & bit != 0 {
                return fails(format!("word {word} is there, and was answered not to be"));
            }
            let answered = of_key.positions[word % WORDS].filter(|_| !self.may_lose);
            if answered.is_some_and(|answered| answered != place) {
                return fails(format!("word {word} has {place} before it, and its append answered {answered:?}"));
            }
            seen |= bit;
        }
        if must & !seen != 0 && !self.may_lose {
            return fails(format!("of the words {must:b} only {seen:b} are there"));
        }
        Ok(())
    }

    /// Judges these keys in the content of the store, and removes them from it.
    pub(crate) fn check_content(&self, content: &mut BTreeMap<Bytes, Bytes>) -> Result<(), String> {
        for (number, of_key) in self.keys.iter().enumerate() {
            self.check(number, of_key.acknowledged, content.remove(&key(number)).as_ref())?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "appended_tests.rs"]
mod tests;
