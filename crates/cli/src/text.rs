//! How tables and sizes are written for people.

use std::fmt::Write;

/// Rows of cells with aligned columns, two spaces apart.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let head = head.iter().map(|cell| (*cell).to_string()).collect();
    for row in std::iter::once(head).chain(rows) {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(&row) {
            write!(line, "{cell:width$}  ").expect("writing to memory");
        }
        writeln!(text, "{}", line.trim_end()).expect("writing to memory");
    }
    text
}

/// A size for people.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
