//! The interface between the event loop and a connection of either protocol: bytes and results in, operations and bytes
//! out. Its implementations know of no sockets: one for each protocol.

use crate::rings::{Ask, ReplyPath};
use crate::session_context::Context;
use crate::users::Answer;
use bytes::BytesMut;
use leeward_format::op::{OpResult, Reply};
use leeward_region::client_memory::Holder;
use leeward_region::request::Request;
use std::vec::Drain;

/// One client connection. Belongs to the event loop's thread.
pub trait ProtocolSession: Send {
    /// Takes bytes from the client. Call [`ProtocolSession::advance`] afterwards.
    fn feed(&mut self, bytes: &[u8]);
    /// Handles the result of operation `number`, which is that of its token. Call [`ProtocolSession::advance`] afterwards.
    fn complete(&mut self, number: u64, result: OpResult, context: &mut Context);
    /// Does what can be done now, as far as the context's quota goes: reads requests, appends operations to `submit`, whose tokens have the
    /// number of this connection,
    /// encodes replies. Call it after every input, when output was taken, and while it [has
    /// work](ProtocolSession::has_work).
    fn advance(&mut self, context: &mut Context, submit: &mut Vec<Request>);
    /// Handles the answer to the question about a password that it waits for. Call [`ProtocolSession::advance`]
    /// afterwards.
    fn answered(&mut self, answer: Answer, context: &mut Context);
    /// Follows a change of the users. `false`: its user is gone, and the connection must be closed at once.
    fn follow_users(&mut self, context: &mut Context) -> bool;
    /// Whether [`ProtocolSession::advance`] stopped because its quota was used up. If so, call it again without waiting
    /// for anything, and read nothing more from the client before that.
    fn has_work(&self) -> bool;
    /// Replies that wait to be sent. The caller takes the bytes off the front that the socket took.
    fn output(&mut self) -> &mut BytesMut;
    /// Whether more may be read from the client. `false` is back-pressure, or the end.
    fn wants_input(&self) -> bool;
    /// Ends the input. The session answers earlier requests, and is [finished](ProtocolSession::is_finished) then.
    fn stop(&mut self);
    /// Tells the client why its connection is closed at once, because there are too many.
    fn turn_away(&mut self);
    /// Whether everything was answered and sent after a [stop](ProtocolSession::stop): it can be closed.
    fn is_finished(&self) -> bool;
    /// Frees the buffers that it keeps for later requests, as far as they are empty.
    fn give_back(&mut self);
    /// The memory that it holds of the clients' account.
    fn holder(&self) -> Holder;
    /// The same, if its client may have a ring.
    fn with_rings(&mut self) -> Option<&mut dyn RingSession> {
        None
    }
}

/// A client connection that may have rings of shared memory beside its socket. The owner of the rings hands in what they hold,
/// and takes answers for them.
pub trait RingSession: ProtocolSession {
    /// Takes a message that came through a ring: one frame, answered by `reply_path`. Call only while
    /// [`ProtocolSession::wants_input`], and [`ProtocolSession::advance`] afterwards.
    fn take_from_ring(&mut self, frame: &[u8], reply_path: ReplyPath, context: &mut Context, submit: &mut Vec<Request>);
    /// Answers that go through rings, each with its reply path, since the last call.
    fn for_rings(&mut self) -> Drain<'_, (ReplyPath, Vec<u8>)>;
    /// Requests about rings since the last call.
    fn ring_asks(&mut self) -> Drain<'_, Ask>;
    /// Whether there are requests about rings.
    fn has_ring_asks(&self) -> bool;
    /// Sends an answer over the stream, because no ring takes it.
    fn send_over_stream(&mut self, frames: &[u8]);
    /// Sends a reply about rings over the stream.
    fn tell(&mut self, reply: &Reply);
    /// Refuses the content of this connection's ring, like bytes of the stream that are no frame.
    fn refuse_ring(&mut self, context: &mut Context, reason: &str);
}
