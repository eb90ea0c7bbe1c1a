//! Rust source as the rules see it: comments and the insides of literals blanked out, line for line. Pure.
//!
//! The lexer knows only what can hide braces and words: comments, strings, raw strings and characters. The rules need
//! no more, since they only count the rest.

/// `text` with every comment and the inside of every string and character literal replaced by spaces. Line breaks
/// stay, so that line numbers hold.
pub(super) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match &bytes[at..] {
            [b'/', b'/', ..] => find(bytes, at, b"\n").unwrap_or(bytes.len()),
            [b'/', b'*', ..] => end_of_block_comment(bytes, at),
            [b'"', ..] => end_of_string(bytes, at),
            [b'r' | b'b', ..] if !follows_word(bytes, at) => end_of_prefixed(bytes, at).unwrap_or(at),
            [b'\'', ..] => end_of_char(bytes, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            out.push(bytes[at]);
            at += 1;
        } else {
            out.extend(bytes[at..end].iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }));
            at = end;
        }
    }
    String::from_utf8(out).expect("only whole literals and comments were replaced, by ASCII")
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

/// Where the first `needle` at or after `from` starts.
fn find(bytes: &[u8], from: usize, needle: &[u8]) -> Option<usize> {
    bytes[from..].windows(needle.len()).position(|window| window == needle).map(|found| from + found)
}

fn end_of_block_comment(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

/// End of the string whose opening quote is at `start`.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// End of a literal that starts with `b`, `r` or `br` at `start`; `None` where it is just a word.
fn end_of_prefixed(bytes: &[u8], start: usize) -> Option<usize> {
    let letters = bytes[start..].iter().take(2).take_while(|byte| matches!(byte, b'r' | b'b')).count();
    let raw = bytes[start..start + letters].contains(&b'r');
    let hashes = bytes[start + letters..].iter().take_while(|byte| **byte == b'#').count();
    match bytes.get(start + letters + hashes)? {
        b'"' if raw => {
            let mut close = vec![b'"'];
            close.resize(1 + hashes, b'#');
            let body = start + letters + hashes + 1;
            Some(find(bytes, body, &close).map_or(bytes.len(), |found| found + close.len()))
        }
        b'"' if hashes == 0 => Some(end_of_string(bytes, start + letters)),
        b'\'' if hashes == 0 && !raw => end_of_char(bytes, start + letters),
        _ => None,
    }
}

/// End of the character literal at `start`; `None` for a lifetime.
fn end_of_char(bytes: &[u8], start: usize) -> Option<usize> {
    if bytes.get(start + 1) == Some(&b'\\') {
        return find(bytes, start + 3, b"'").map(|close| close + 1);
    }
    let width = match bytes.get(start + 1)? {
        ..0x80 => 1,
        ..0xe0 => 2,
        ..0xf0 => 3,
        _ => 4,
    };
    (bytes.get(start + 1 + width) == Some(&b'\'')).then_some(start + width + 2)
}

/// A function's name, first line (from 1) and length in lines, signature and closing brace included.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) lines: usize,
}

/// Every function with a body in `code`, which must come from [`code_only`].
pub(super) fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if follows_word(code.as_bytes(), at) {
            continue;
        }
        let name: String = code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let Some(open) = body_of(&code[at..]).filter(|_| !name.is_empty()) else { continue };
        let end = end_of_block(code, at + open);
        let line = code[..at].matches('\n').count() + 1;
        found.push(Function { name, line, lines: code[at..end].matches('\n').count() + 1 });
    }
    found
}

/// Offset of the brace that opens the body; `None` where the declaration has no body.
fn body_of(declaration: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, c) in declaration.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Offset after the brace that closes the one at `open`.
pub(super) fn end_of_block(code: &str, open: usize) -> usize {
    let mut depth = 0_i32;
    for (at, c) in code[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return open + at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// `code` with the bodies of `#[cfg(test)]` items blanked out.
pub(super) fn without_tests(code: &str) -> String {
    let mut kept = code.to_owned();
    for (at, mark) in code.match_indices("#[cfg(test)]") {
        let item = at + mark.len();
        if let Some(open) = body_of(&code[item..]) {
            let (from, to) = (item + open, end_of_block(code, item + open));
            let blank: String = code[from..to].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            let blank = format!("{blank:<width$}", width = to - from);
            kept.replace_range(from..to, &blank);
        }
    }
    kept
}
