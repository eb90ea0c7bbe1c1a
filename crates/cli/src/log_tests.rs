//! Tests of the log on a disk that is full for a while.

use super::*;

/// A file with room for so many bytes more.
#[derive(Debug, Default)]
struct Disk {
    bytes: Vec<u8>,
    room: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.room);
        if taken == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(&bytes[..taken]);
        self.room -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The file after lines "line 0" to "line 5", with `room` for the first four, and then enough.
fn written(room: usize) -> String {
    let log = LineLog::new(Disk { room, ..Disk::default() });
    for number in 0..6 {
        if number == 4 {
            log.writer.lock().unwrap().out.room = 1000;
        }
        log.make_writer().write_all(format!("line {number}\n").as_bytes()).unwrap();
    }
    let disk = log.writer.into_inner().unwrap().out;
    String::from_utf8(disk.bytes).unwrap()
}

#[test]
fn a_line_that_had_no_room_spoils_no_other() {
    let notice = |lost| format!("({lost} missing or cut off here: they could not be written)\n");
    assert_eq!(written(100), "line 0\nline 1\nline 2\nline 3\nline 4\nline 5\n");
    assert_eq!(written(0), format!("{}line 4\nline 5\n", notice("4 lines are")));
    assert_eq!(written(7), format!("line 0\n{}line 4\nline 5\n", notice("3 lines are")));
    assert_eq!(written(10), format!("line 0\nlin\n{}line 4\nline 5\n", notice("3 lines are")));
    assert_eq!(written(27), format!("line 0\nline 1\nline 2\nline 3\n{}line 4\nline 5\n", notice("1 line is")));
    // Everywhere else: lines are whole, except one.
    for room in 0..100 {
        let text = written(room);
        let odd = text.lines().filter(|line| !line.starts_with('(') && line.len() != 6).count();
        assert!(text.ends_with("line 4\nline 5\n") && odd <= 1, "room {room}: {text}");
    }
}
