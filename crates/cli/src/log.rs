//! The log on the standard error: whole lines, also where the file that it goes to finds no room for a while.
//!
//! A write for which there is not enough room writes a part of the line. The next line then begins on a line of its own,
//! after one that says how many are missing. Nothing that fails here ends the process, or is reported anywhere else.
//! Any thread; one line at a time.

use std::io::{self, Write};
use std::sync::Mutex;
use tracing_subscriber::fmt::MakeWriter;

/// Where lines go.
#[derive(Debug)]
pub(crate) struct LineLog<W> {
    writer: Mutex<LineWriter<W>>,
}

#[derive(Debug)]
struct LineWriter<W> {
    out: W,
    /// The last line was written in part.
    is_torn: bool,
    /// Lines that were not written, or in part, since the last whole one.
    lost: u64,
}

impl<W: Write> LineLog<W> {
    pub(crate) fn new(out: W) -> LineLog<W> {
        LineLog { writer: Mutex::new(LineWriter { out, is_torn: false, lost: 0 }) }
    }
}

impl<W: Write> LineWriter<W> {
    /// Writes a line that ends in a newline.
    fn line(&mut self, line: &[u8]) {
        if self.lost > 0 {
            let newline = if self.is_torn { "\n" } else { "" };
            let lines = if self.lost == 1 { "line is" } else { "lines are" };
            let notice =
                format!("{newline}({} {lines} missing or cut off here: they could not be written)\n", self.lost);
            if self.put(notice.as_bytes()) {
                self.lost = 0;
            }
        }
        if self.lost > 0 || !self.put(line) {
            self.lost += 1;
        }
    }

    /// Whether all of `bytes`, which are not empty, were written.
    fn put(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.out.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) | Ok(0) => return false,
                Ok(written) => {
                    bytes = &bytes[written..];
                    self.is_torn = !bytes.is_empty();
                }
            }
        }
        true
    }
}

/// One line.
#[derive(Debug)]
pub(crate) struct Line<'a, W: Write>(&'a LineLog<W>);

impl<W: Write> Write for Line<'_, W> {
    /// The subscriber gives each line in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, W: Write + 'a> MakeWriter<'a> for LineLog<W> {
    type Writer = Line<'a, W>;

    fn make_writer(&'a self) -> Line<'a, W> {
        Line(self)
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
