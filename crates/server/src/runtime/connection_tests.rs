//! What a connection hands to its session, and when it ends the session's input.

use super::*;
use crate::commands::idle_node::IdleNode;
use crate::session_context::Facts;
use crate::users::Answer;
use leeward_region::client_memory::{ClientMemory, Holder};
use parking_lot::Mutex;
use std::net::{TcpListener, TcpStream as StdStream};
use std::sync::Arc;

/// What a session has got, has executed, and waits for, as one that asks for a password does.
#[derive(Default)]
struct Seen {
    input: Vec<u8>,
    done: Vec<u8>,
    waits: bool,
    stopped: bool,
}

/// Executes all of its input unless it waits. It waits once it has input.
struct Waiting(Arc<Mutex<Seen>>, BytesMut, ClientMemory);

impl ProtocolSession for Waiting {
    fn feed(&mut self, bytes: &[u8]) {
        let mut seen = self.0.lock();
        seen.input.extend_from_slice(bytes);
        seen.waits = true;
    }

    fn complete(&mut self, _: u64, _: OpResult, _: &mut Context) {}

    fn advance(&mut self, _: &mut Context, _: &mut Vec<Request>) {
        let seen = &mut *self.0.lock();
        if !seen.waits && !seen.stopped {
            seen.done.append(&mut seen.input);
        }
    }

    fn turn_away(&mut self) {}

    fn answered(&mut self, _: Answer, _: &mut Context) {}

    fn follow_users(&mut self, _: &mut Context) -> bool {
        true
    }

    fn has_work(&self) -> bool {
        false
    }

    fn output(&mut self) -> &mut BytesMut {
        &mut self.1
    }

    fn wants_input(&self) -> bool {
        let seen = self.0.lock();
        !seen.waits && !seen.stopped
    }

    fn stop(&mut self) {
        self.0.lock().stopped = true;
    }

    fn is_finished(&self) -> bool {
        false
    }

    fn give_back(&mut self) {}

    fn holder(&self) -> Holder {
        Holder::new(&self.2.charge(), false)
    }
}

#[test]
fn the_end_of_the_stream_waits_for_what_came_before_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut client = StdStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (stream, _) = listener.accept().expect("a client");
    client.write_all(b"abc").expect("it is connected");
    client.shutdown(Shutdown::Write).expect("it is connected");
    let seen = Arc::new(Mutex::new(Seen::default()));
    let session = Waiting(seen.clone(), BytesMut::new(), ClientMemory::unlimited());
    // Reads block here, until the bytes and the end have come.
    let channel = channel(None, TcpStream::from_std(stream));
    let mut connection = Connection::new(Kind::Resp, channel, Box::new(session), Nanos::ZERO);
    let mut node = IdleNode::new(Facts::default());
    let mut read = || {
        connection.became_readable(true);
        connection.read(&mut [0; 64], &mut node.context(), &mut Vec::new());
    };
    read();
    assert_eq!(seen.lock().input, b"abc");
    read();
    assert!(!seen.lock().stopped, "it waits, and is not read");
    seen.lock().waits = false;
    read();
    assert_eq!(seen.lock().done, b"abc");
    assert!(seen.lock().stopped);
}
