//! Glob patterns as `KEYS` and `SCAN MATCH` take them: `*`, `?`, `[abc]`, `[a-z]`, `[^a]`, `\` to escape.
//!
//! Matching never takes more than pattern length times text length steps, whatever the pattern. That is still 16
//! million for the longest of both. So a match takes from a [`Quota`] and can be continued: [`Match`] is its state.

use crate::quota::Quota;

/// Most bytes of a pattern, or of several together: every byte of the longest key may be escaped, twice over.
pub(super) const MAX_PATTERN_BYTES: usize = 16 * 1024;
/// Steps of a match for one unit of the quota.
const STEPS_OF_A_UNIT: u32 = 32;

/// The reply to a pattern that is too long.
pub(super) fn too_long() -> String {
    format!("a pattern is limited to {MAX_PATTERN_BYTES} bytes")
}

/// A match under way. The same pattern and text must be given in each call.
#[derive(Clone, Debug, Default)]
pub(super) struct Match {
    pattern: usize,
    text: usize,
    /// Where to continue when the part after the last `*` did not match: the `*` then takes one byte more.
    retry: Option<(usize, usize)>,
}

impl Match {
    /// Whether all of `text` matches `pattern`; `None` when the quota is used up before that is known.
    pub(super) fn run(&mut self, pattern: &[u8], text: &[u8], quota: &mut Quota) -> Option<bool> {
        while !quota.is_used_up() {
            quota.take(1);
            for _ in 0..STEPS_OF_A_UNIT {
                if let Some(known) = self.step(pattern, text, quota) {
                    return Some(known);
                }
            }
        }
        None
    }

    /// One step. Returns whether all of `text` matches, once that is known.
    fn step(&mut self, pattern: &[u8], text: &[u8], quota: &mut Quota) -> Option<bool> {
        if pattern.get(self.pattern) == Some(&b'*') {
            self.pattern += 1;
            self.retry = Some((self.pattern, self.text));
            return None;
        }
        let matched = match (self.pattern < pattern.len(), self.text < text.len()) {
            (false, false) => return Some(true),
            (true, true) => one(&pattern[self.pattern..], text[self.text], quota),
            _ => None,
        };
        match (matched, self.retry) {
            (Some(len), _) => {
                self.pattern += len;
                self.text += 1;
            }
            (None, Some((after_star, taken))) if taken < text.len() => {
                self.retry = Some((after_star, taken + 1));
                (self.pattern, self.text) = (after_star, taken + 1);
            }
            _ => return Some(false),
        }
        None
    }
}

/// Whether all of `text` matches `pattern`: for short ones.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    Match::default().run(pattern, text, &mut Quota::of(u32::MAX)).unwrap_or(false)
}

/// The bytes with which every match begins.
pub(super) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(pattern.len());
    &pattern[..end]
}

/// Length of the element at the start of `pattern`, which is not `*`, if it matches `byte`.
fn one(pattern: &[u8], byte: u8, quota: &mut Quota) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (len, matched) = class_matches(class, byte);
            quota.take(len as u32 / STEPS_OF_A_UNIT);
            matched.then_some(1 + len)
        }
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// Length of the class after its `[`, the closing `]` included if there is one, and whether it matches.
fn class_matches(class: &[u8], byte: u8) -> (usize, bool) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut matched = false;
    loop {
        match &class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                matched |= *literal == byte;
                at += 2;
            }
            [from, b'-', to, ..] if *to != b']' => {
                matched |= (*from.min(to)..=*from.max(to)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                matched |= *literal == byte;
                at += 1;
            }
        }
    }
    (at, matched != negated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        let yes: &[(&str, &str)] = &[
            ("*", ""),
            ("*", "abc"),
            ("a*c", "abbbc"),
            ("a*", "a"),
            ("h?llo", "hello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-b]llo", "hbllo"),
            ("\\*", "*"),
            ("a\\?c", "a?c"),
            ("**a**", "xxaxx"),
            ("[\\]]", "]"),
            ("[b-a]", "a"),
            ("*ab*ab", "abxabab"),
            ("user:*:name", "user:12:name"),
            ("[abc", "b"),
        ];
        let no: &[(&str, &str)] = &[
            ("", "a"),
            ("a", ""),
            ("h?llo", "hllo"),
            ("h[^e]llo", "hello"),
            ("\\*", "a"),
            ("a*c", "ab"),
            ("[a-c]", "d"),
            ("*ab", "abc"),
            ("abc", "ab"),
            ("a?", "a"),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} should match {text}");
        }
        for (pattern, text) in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} should not match {text}");
        }
    }

    /// Units that it takes to know whether `text` matches, in steps of so many.
    fn units(pattern: &[u8], text: &[u8], step: u32) -> (bool, u32) {
        let (mut under_way, mut units) = (Match::default(), 0);
        loop {
            let mut quota = Quota::of(step);
            let known = under_way.run(pattern, text, &mut quota);
            units += step;
            if let Some(known) = known {
                return (known, units);
            }
            assert!(quota.is_used_up(), "it stops only for lack of quota");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_more_than_length_times_length() {
        let text = "a".repeat(4096);
        for pattern in ["a*".repeat(2000) + "b", format!("*{}b", "a".repeat(2000)), format!("*{}", "[^b]".repeat(5000))]
        {
            let (known, units) = units(pattern.as_bytes(), text.as_bytes(), 100);
            assert!(!known);
            let steps = (pattern.len() * text.len()) as u32;
            assert!(units <= steps / STEPS_OF_A_UNIT + 200, "{units} units for {steps} steps of {}", &pattern[..8]);
        }
    }

    #[test]
    fn a_match_that_is_cut_short_goes_on_where_it_was() {
        let (text, class) = ("a".repeat(300) + "b", format!("*[{}b]", "x".repeat(500)));
        for pattern in ["*aaaab", "a*a*a*c", "*b", "*", &class] {
            let whole = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(units(pattern.as_bytes(), text.as_bytes(), 1).0, whole, "{pattern}");
        }
    }

    #[test]
    fn a_long_class_counts_for_its_length() {
        let (class, mut quota) = (format!("[{}]", "x".repeat(10_000)), Quota::of(1000));
        assert_eq!(Match::default().run(class.as_bytes(), b"a", &mut quota), Some(false));
        let mut left = 0;
        while !quota.is_used_up() {
            quota.take(1);
            left += 1;
        }
        assert!(left < 700, "{left} of 1000 are left");
    }

    #[test]
    fn the_literal_prefix_bounds_the_scan() {
        assert_eq!(literal_prefix(b"user:[12]*"), b"user:");
        assert_eq!(literal_prefix(b"*"), b"");
        assert_eq!(literal_prefix(b"a\\*"), b"a");
        assert_eq!(literal_prefix(b"exact"), b"exact");
    }
}
