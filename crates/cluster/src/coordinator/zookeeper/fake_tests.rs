//! Fake servers for tests: their packets, byte by byte, and a socket.

use leeward_format::zookeeper::{LENGTH_BYTES, read_packet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

pub(super) const SYNC: i32 = 9;
pub(super) const WATCH: i32 = 106;
pub(super) const DATA: i32 = 22;
pub(super) const CHILDREN: i32 = 8;
pub(super) const MULTI: i32 = 14;
pub(super) const PING: i32 = 11;

pub(super) fn int(value: i32) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

pub(super) fn text(value: &str) -> Vec<u8> {
    [int(value.len() as i32), value.into()].concat()
}

/// The state of a path: a value and its numbers.
pub(super) fn found(value: Option<&str>, mzxid: i64, version: i32, children: i32) -> Vec<u8> {
    let value = value.map_or(int(-1), text);
    let numbers = [&mzxid.to_be_bytes()[..], &[0; 16], &int(version), &[0; 20], &int(children), &[0; 8]].concat();
    [int(4), vec![0], int(-1), value, vec![0; 8], numbers].concat()
}

/// The refusal of a path or a step; the code is 0 for a step before the failed one.
pub(super) fn refused(code: i32) -> Vec<u8> {
    [int(-1), vec![0], int(-1), int(code)].concat()
}

/// All results of a multi.
pub(super) fn multi(results: &[Vec<u8>]) -> Vec<u8> {
    [results.concat(), int(-1), vec![1], int(-1)].concat()
}

/// The answer to the read of one path.
pub(super) fn data(value: Option<&str>, mzxid: i64, version: i32, children: i32) -> Vec<u8> {
    multi(&[found(value, mzxid, version, children)])
}

/// Names beneath a path.
pub(super) fn names(names: &[&str]) -> Vec<u8> {
    let texts = names.iter().map(|name| text(name));
    std::iter::once(int(names.len() as i32)).chain(texts).collect::<Vec<_>>().concat()
}

/// The answer to the first packet; without a session, if the timeout is 0.
pub(super) fn greeting(timeout_ms: i32) -> Vec<u8> {
    [int(0), int(timeout_ms), vec![0, 0, 0, 0, 0, 0, 0, 5], int(16), vec![7; 16]].concat()
}

/// Any later answer.
pub(super) fn answer(xid: i32, zxid: i64, code: i32, body: &[u8]) -> Vec<u8> {
    [&int(xid)[..], &zxid.to_be_bytes(), &int(code), body].concat()
}

/// The request of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) xid: i32,
    pub(super) kind: i32,
    /// The paths, separated by spaces; empty for requests that change something.
    pub(super) paths: String,
}

/// Reads a packet that is not the first.
pub(super) fn asked(body: &[u8]) -> Asked {
    let number = |at: usize| i32::from_be_bytes(body[at..at + 4].try_into().unwrap());
    let path = |at: usize| std::str::from_utf8(&body[at + 4..at + 4 + number(at) as usize]).unwrap();
    let (kind, mut paths) = (number(4), Vec::new());
    match kind {
        SYNC | WATCH | CHILDREN => paths.push(path(8)),
        DATA => {
            let mut at = 8;
            while number(at) == 4 {
                paths.push(path(at + 9));
                at += 9 + 4 + number(at + 9) as usize + 1;
            }
        }
        _ => {}
    }
    Asked { xid: number(0), kind, paths: paths.join(" ") }
}

/// Listens, and calls `serve` for each connection, each on a thread of its own. The first connection is number 0. Never ends.
pub(super) fn listen(serve: impl Fn(usize, Peer) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(number, Peer { stream, input: Vec::new() }));
        }
    });
    address
}

pub(super) struct Peer {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Peer {
    /// The next packet; `None` once the client is gone.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(body) = read_packet(&self.input).unwrap() {
                let body = body.to_vec();
                self.input.drain(..LENGTH_BYTES + body.len());
                return Some(body);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(bytes @ 1..) => self.input.extend_from_slice(&buffer[..bytes]),
                _ => return None,
            }
        }
    }

    /// Sends a packet.
    pub(super) fn send(&mut self, body: &[u8]) {
        // A client that is gone needs no answer.
        drop(self.stream.write_all(&[&int(body.len() as i32)[..], body].concat()));
    }
}
