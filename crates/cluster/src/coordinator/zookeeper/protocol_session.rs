//! The protocol over one connection to a server of the ensemble. The client continues a session and reads the tree. Then it sends
//! operations, and the server reports changes.
//!
//! ```text
//! Connect -> Digest, Sync, Watch -> reads ... all read: Up, the tree, Synced -> Multi, notifications, reads ...
//! ```
//! Invariants: answers come in the order of the requests. `Sync` comes before the reads, so the tree contains every late effect
//! of an earlier connection of this session. An operation's answer is held back until everything that changed before it was read
//! and told.
//!
//! `(now, packet) -> events, bytes to be sent`: no socket, clock or thread. One thread at a time.

use super::mirror::{Mirror, Read};
use super::plan::{Place, Plan, Verdict};
use crate::coordinator::client::heartbeat_interval;
use crate::coordinator::connection::Broken;
use crate::{CoordinatorError, CoordinatorEvent, CoordinatorOp, SessionId};
use leeward_format::zookeeper::{
    AUTH_XID, Body, Connect, Connected, PING_XID, ReplyHeader, Request, Step, WATCH_XID, Watched, error, write_connect,
    write_request,
};
use leeward_platform::Nanos;
use std::collections::VecDeque;

/// Attempts that may fail because other processes make paths beside the changed one.
const MOST_ATTEMPTS: u32 = 32;

/// Why a protocol session ends.
#[derive(Debug)]
pub(super) enum End {
    /// The session that was to be continued is over.
    Expired,
    /// The server ended the session, as the client asked.
    Left,
    /// Any other reason.
    Broken(Broken),
}

impl<E: Into<Broken>> From<E> for End {
    fn from(error: E) -> End {
        End::Broken(error.into())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No answer came yet.
    Greeting,
    /// The tree is being read.
    Reading,
    /// The session is up.
    Up,
}

/// A request that is not answered.
#[derive(Debug)]
struct Waiting {
    xid: i32,
    sent: Nanos,
    asked: Asked,
}

#[derive(Debug)]
enum Asked {
    Sync,
    Watch,
    /// The cluster's path is made as far as this.
    MakeRoot(String),
    Read(Read),
    Op(Requested, Plan),
    Close,
}

/// An operation that was submitted.
#[derive(Debug)]
struct Requested {
    id: u64,
    op: CoordinatorOp,
    attempts: u32,
}

/// The result of an operation.
#[derive(Debug)]
enum Answer {
    Told(u64, Result<u64, CoordinatorError>),
    /// A refusal. Its meaning depends on the changes before it.
    Refused {
        request: Requested,
        plan: Plan,
        step: usize,
        code: i32,
    },
}

/// The protocol session.
#[derive(Debug)]
pub(super) struct ProtocolSession {
    place: Place,
    digest: Option<String>,
    phase: Phase,
    connected: Option<Connected>,
    mirror: Mirror,
    waiting: VecDeque<Waiting>,
    /// When the unanswered pings were sent.
    pings: VecDeque<Nanos>,
    next_xid: i32,
    heard: Nanos,
    received: Nanos,
    last_zxid: i64,
    has_made_root: bool,
    /// Answers that are told once everything before them was told.
    answers: Vec<Answer>,
    /// Bytes to be sent.
    pub(super) output: Vec<u8>,
    /// Events to be told.
    pub(super) events: Vec<CoordinatorEvent>,
}

impl ProtocolSession {
    /// Begins a protocol session at `now`.
    pub(super) fn new(now: Nanos, place: Place, digest: Option<String>, connect: &Connect) -> ProtocolSession {
        let mut output = Vec::new();
        write_connect(connect, &mut output);
        ProtocolSession {
            place,
            digest,
            phase: Phase::Greeting,
            connected: None,
            mirror: Mirror::default(),
            waiting: VecDeque::new(),
            pings: VecDeque::new(),
            next_xid: 1,
            heard: now,
            received: now,
            last_zxid: connect.last_zxid,
            has_made_root: false,
            answers: Vec::new(),
            output,
            events: Vec::new(),
        }
    }

    /// The session, once the server has accepted it.
    pub(super) fn connected(&self) -> Option<&Connected> {
        self.connected.as_ref()
    }

    /// Whether the tree was told.
    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// When the newest answered request was sent: the session lasts at least one timeout longer than that.
    pub(super) fn heard(&self) -> Nanos {
        self.heard
    }

    /// The instant from which silence counts. Once the tree was told, that is [`ProtocolSession::heard`]. While the tree is read,
    /// every byte is a sign of life, however old its request is: the client does not read everything anew because a server is
    /// slow.
    pub(super) fn alive(&self) -> Nanos {
        if self.is_up() { self.heard } else { self.received }
    }

    /// Number of the newest change seen.
    pub(super) fn last_zxid(&self) -> i64 {
        self.last_zxid
    }

    /// The server sent something, perhaps a part of a packet.
    pub(super) fn receive(&mut self, now: Nanos) {
        self.received = now;
    }

    /// Handles a packet of the server.
    pub(super) fn take(&mut self, now: Nanos, packet: &[u8]) -> Result<(), End> {
        let mut body = Body::new(packet);
        if self.phase == Phase::Greeting {
            return self.greeted(now, body.connected()?);
        }
        let header = body.header()?;
        self.last_zxid = self.last_zxid.max(header.zxid);
        match header.xid {
            WATCH_XID => {
                let (what, path) = body.watched()?;
                if let (Watched::Changed, Some(path)) = (what, path.strip_prefix(&self.place.root)) {
                    self.mirror.changed(path.to_owned());
                }
            }
            PING_XID => self.heard = self.pings.pop_front().unwrap_or(self.heard).max(self.heard),
            AUTH_XID if header.error == error::OK => {}
            AUTH_XID => return Err(self.refused(error::AUTH_FAILED, None)),
            xid => match self.waiting.pop_front() {
                Some(waiting) if waiting.xid == xid => {
                    self.heard = waiting.sent.max(self.heard);
                    self.answered(now, waiting.asked, header, body)?;
                }
                _ => return Err(Broken::Protocol("an answer to a question that was not asked").into()),
            },
        }
        self.run_next(now);
        Ok(())
    }

    fn greeted(&mut self, now: Nanos, connected: Connected) -> Result<(), End> {
        if connected.timeout_ms <= 0 {
            return Err(End::Expired);
        }
        self.connected = Some(connected);
        self.phase = Phase::Reading;
        self.heard = now;
        if let Some(digest) = &self.digest {
            write_request(AUTH_XID, &Request::Digest(digest), &mut self.output);
        }
        let root = self.place.root.clone();
        self.ask(now, &Request::Sync(&root), Asked::Sync);
        self.ask(now, &Request::Watch(&root), Asked::Watch);
        self.mirror.changed(String::new());
        self.run_next(now);
        Ok(())
    }

    fn ask(&mut self, now: Nanos, request: &Request<'_>, asked: Asked) {
        let xid = self.next_xid();
        write_request(xid, request, &mut self.output);
        self.waiting.push_back(Waiting { xid, sent: now, asked });
    }

    fn next_xid(&mut self) -> i32 {
        let xid = self.next_xid;
        self.next_xid = xid.checked_add(1).unwrap_or(1);
        xid
    }

    fn refused(&self, code: i32, path: Option<&str>) -> End {
        refused(code, || self.place.explain(code, path))
    }

    fn answered(&mut self, now: Nanos, asked: Asked, header: ReplyHeader, body: Body<'_>) -> Result<(), End> {
        match (asked, header.error) {
            (Asked::Sync | Asked::Watch, error::OK) => {}
            (Asked::MakeRoot(part), error::OK) => match body.multi()? {
                None | Some((_, error::NODE_EXISTS)) if part == self.place.root => self.mirror.changed(String::new()),
                None | Some((_, error::NODE_EXISTS)) => {}
                Some((_, code)) => return Err(refused(code, || self.place.explain_part(code, &part))),
            },
            (Asked::Read(read), _) => {
                self.mirror.answered();
                self.read(now, read, header, body)?;
            }
            (Asked::Op(request, plan), code) => {
                let failed = if code == error::OK { body.multi()? } else { Some((plan.steps.len(), code)) };
                match failed {
                    None => self.answers.push(Answer::Told(request.id, Ok(header.zxid.unsigned_abs()))),
                    Some((_, code @ (error::SESSION_EXPIRED | error::SESSION_MOVED))) => {
                        self.answers.push(Answer::Told(request.id, Err(CoordinatorError::Disconnected)));
                        return Err(self.refused(code, None));
                    }
                    Some((step, code)) => self.answers.push(Answer::Refused { request, plan, step, code }),
                }
            }
            (Asked::Close, _) => return Err(End::Left),
            (Asked::Sync | Asked::Watch | Asked::MakeRoot(_), code) => return Err(self.refused(code, None)),
        }
        Ok(())
    }

    /// Handles the result of a read.
    fn read(&mut self, now: Nanos, read: Read, header: ReplyHeader, body: Body<'_>) -> Result<(), End> {
        match (read, header.error) {
            (Read::Data(paths), error::OK) => {
                let found = body.data()?;
                if found.len() != paths.len() {
                    return Err(Broken::Protocol("an answer of another length than the question").into());
                }
                for (path, found) in paths.into_iter().zip(found) {
                    match found {
                        Ok((value, stat)) => self.mirror.found(path, value, stat),
                        Err(error::NO_NODE) => {
                            let is_root = path.is_empty();
                            self.mirror.missing(path, header.zxid);
                            if is_root {
                                self.make_root(now)?;
                            }
                        }
                        Err(code) => return Err(self.refused(code, Some(&path))),
                    }
                }
            }
            (Read::Children(path), error::OK) => self.mirror.children(&path, body.children()?),
            (Read::Children(_), error::NO_NODE) => {}
            (Read::Children(path), code) => return Err(self.refused(code, Some(&path))),
            (Read::Data(_), code) => return Err(self.refused(code, None)),
        }
        Ok(())
    }

    /// Makes the cluster's path, part by part.
    fn make_root(&mut self, now: Nanos) -> Result<(), End> {
        if std::mem::replace(&mut self.has_made_root, true) || self.is_up() {
            return Err(Broken::Refused(format!("{} was removed", self.place.root)).into());
        }
        let root = self.place.root.clone();
        tracing::info!(path = root, "the cluster's path at ZooKeeper is made");
        let ends = root.match_indices('/').map(|(at, _)| at).skip(1).chain([root.len()]);
        for end in ends {
            let path = root[..end].to_owned();
            let steps = [Step::Create { path: path.clone(), value: None, ephemeral: false, access: self.place.access }];
            self.ask(now, &Request::Multi(&steps), Asked::MakeRoot(path));
        }
        Ok(())
    }

    /// Sends the reads that are to be done. Once all are answered, tells the news and the answers.
    fn run_next(&mut self, now: Nanos) {
        while let Some(read) = self.mirror.next_read() {
            let whole = |path: &String| format!("{}{path}", self.place.root);
            match &read {
                Read::Data(paths) => {
                    let paths: Vec<String> = paths.iter().map(whole).collect();
                    self.ask(now, &Request::Data(&paths), Asked::Read(read));
                }
                Read::Children(path) => {
                    let path = whole(path);
                    self.ask(now, &Request::Children(&path), Asked::Read(read));
                }
            }
        }
        if !self.mirror.is_settled() || self.mirror.get("").is_none() {
            return;
        }
        if self.phase == Phase::Reading && !self.is_prompt(now) {
            return;
        }
        let news = self.mirror.take_news(self.last_zxid);
        let changed = (!news.is_empty()).then_some(CoordinatorEvent::Changed(news));
        if let (Phase::Reading, Some(Connected { session, .. })) = (self.phase, &self.connected) {
            self.phase = Phase::Up;
            self.events.push(CoordinatorEvent::Up { session: SessionId(session.cast_unsigned()) });
            self.events.extend(changed);
            self.events.push(CoordinatorEvent::Synced { version: self.mirror.told() });
        } else {
            self.events.extend(changed);
        }
        self.tell_answers(now);
    }

    /// Whether the last answered request was sent so recently that the session does not count as lost again at once: at most two
    /// heartbeats ago. If not, the answer to the next heartbeat helps.
    fn is_prompt(&self, now: Nanos) -> bool {
        let timeout_ms = self.connected.as_ref().map_or(0, |connected| connected.timeout_ms.unsigned_abs());
        let interval = heartbeat_interval(Nanos::from_millis(timeout_ms.into()));
        now.since(self.heard) < interval + interval
    }

    /// Tells the results of operations. Everything that was done before them was told.
    fn tell_answers(&mut self, now: Nanos) {
        while !self.answers.is_empty() {
            for answer in std::mem::take(&mut self.answers) {
                let (id, result) = match answer {
                    Answer::Told(id, result) => (id, result),
                    Answer::Refused { request, plan, step, code } => {
                        match self.place.judge(&self.mirror, &plan, step, code) {
                            Verdict::Failed(error) => (request.id, Err(error)),
                            Verdict::Again if request.attempts < MOST_ATTEMPTS => {
                                self.send(now, Requested { attempts: request.attempts + 1, ..request });
                                continue;
                            }
                            Verdict::Again => {
                                let why = format!(
                                    "{MOST_ATTEMPTS} attempts failed: others make paths beside it all the time"
                                );
                                (request.id, Err(CoordinatorError::Refused(why)))
                            }
                        }
                    }
                };
                self.events.push(CoordinatorEvent::Reply { id, result });
            }
        }
    }

    /// Sends an operation.
    pub(super) fn submit(&mut self, now: Nanos, id: u64, op: CoordinatorOp) {
        if !self.is_up() {
            let result = Err(CoordinatorError::Disconnected);
            return self.events.push(CoordinatorEvent::Reply { id, result });
        }
        self.send(now, Requested { id, op, attempts: 1 });
        if self.mirror.is_settled() {
            self.tell_answers(now);
        }
    }

    fn send(&mut self, now: Nanos, request: Requested) {
        match self.place.plan(&self.mirror, &request.op) {
            Ok(plan) if plan.steps.is_empty() => self.answers.push(Answer::Told(request.id, Ok(self.mirror.told()))),
            Ok(plan) => {
                let xid = self.next_xid();
                write_request(xid, &Request::Multi(&plan.steps), &mut self.output);
                self.waiting.push_back(Waiting { xid, sent: now, asked: Asked::Op(request, plan) });
            }
            Err(error) => self.answers.push(Answer::Told(request.id, Err(error))),
        }
    }

    /// Sends a heartbeat.
    pub(super) fn ping(&mut self, now: Nanos) {
        write_request(PING_XID, &Request::Ping, &mut self.output);
        self.pings.push_back(now);
    }

    /// Asks the server to end the session.
    pub(super) fn leave(&mut self, now: Nanos) {
        self.ask(now, &Request::Close, Asked::Close);
    }

    /// The connection is gone: returns the events for what is lost with it.
    pub(super) fn lose(mut self) -> Vec<CoordinatorEvent> {
        if self.is_up() {
            self.events.push(CoordinatorEvent::Down);
        }
        let asked = self.waiting.into_iter().filter_map(|waiting| match waiting.asked {
            Asked::Op(request, _) => Some(request.id),
            _ => None,
        });
        let held = self.answers.into_iter().map(|answer| match answer {
            Answer::Told(id, _) | Answer::Refused { request: Requested { id, .. }, .. } => id,
        });
        for id in held.chain(asked) {
            self.events.push(CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Disconnected) });
        }
        self.events
    }
}

/// The meaning of a refusal with `code`; `explain` makes the text.
fn refused(code: i32, explain: impl FnOnce() -> String) -> End {
    match code {
        error::SESSION_EXPIRED | error::SESSION_MOVED => Broken::Protocol("the session ended or moved").into(),
        _ => Broken::Refused(explain()).into(),
    }
}

#[cfg(test)]
#[path = "protocol_session_tests.rs"]
mod tests;
