//! Glob patterns as `KEYS` and `SCAN MATCH` take them: `*`, `?`, `[abc]`, `[a-z]`, `[^a]`, `\` to escape.
//!
//! Matching never takes more than pattern length times text length steps, whatever the pattern.

/// Whether all of `text` matches `pattern`.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when what follows the last `*` did not match: let the `*` take one byte more.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        let step = match (p < pattern.len(), t < text.len()) {
            (false, false) => return true,
            (true, true) => one(&pattern[p..], text[t]),
            _ => None,
        };
        match (step, retry) {
            (Some(len), _) => {
                p += len;
                t += 1;
            }
            (None, Some((after_star, taken))) if taken < text.len() => {
                retry = Some((after_star, taken + 1));
                (p, t) = (after_star, taken + 1);
            }
            _ => return false,
        }
    }
}

/// Bytes with which everything that matches begins.
pub(super) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(pattern.len());
    &pattern[..end]
}

/// Length of the element at the start of `pattern`, which is not `*`, if it matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (len, matched) = class_matches(class, byte);
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

    #[test]
    fn a_hostile_pattern_ends_soon() {
        let pattern = "a*".repeat(2000) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(4096).as_bytes()));
    }

    #[test]
    fn the_literal_prefix_bounds_the_scan() {
        assert_eq!(literal_prefix(b"user:[12]*"), b"user:");
        assert_eq!(literal_prefix(b"*"), b"");
        assert_eq!(literal_prefix(b"a\\*"), b"a");
        assert_eq!(literal_prefix(b"exact"), b"exact");
    }
}
