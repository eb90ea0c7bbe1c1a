//! The protocol over one connection to a server of the ensemble. The client continues a session and reads the tree. Then it sends
//! operations, and the server reports changes.
//!
//! ```text
//! Connect -> Digest, (Multi,) Sync, Watch -> reads ... all read: Up, the tree, Synced -> Multi, notifications, reads ...
//! ```
//! Now and then the known tree is compared with the server's ([`Comparison`]): a difference ends the connection.
//!
//! Invariants: answers come in the order of the requests. `Sync` comes before the reads, so the tree contains every late effect
//! of an earlier connection of this session. An operation's answer is held back until everything that changed before it was read
//! and told. A client that asks for whatever the server has begins a session, or sends a change first: both take a quorum, so a
//! leader that is cut off does not show its older tree.
//!
//! `(now, packet) -> events, bytes to be sent`: no socket, clock or thread. One thread at a time.

use super::comparison::Comparison;
use super::mirror::{Mirror, Read, Unreported};
use super::plan::{ClusterRoot, Plan, Verdict};
use super::request_limit::RequestLimit;
use crate::coordinator::client::heartbeat_interval;
use crate::coordinator::connection::Broken;
use crate::{CoordinatorError, CoordinatorEvent, CoordinatorOp, SessionId};
use leeward_format::zookeeper::{
    AUTH_XID, Body, Connect, Connected, PING_XID, ReplyHeader, Request, Step, WATCH_XID, Watched, error, write_connect,
    write_request,
};
use leeward_platform::Nanos;
use std::collections::{BTreeSet, VecDeque};

/// Attempts that may fail because other processes make paths beside the changed one.
const MOST_ATTEMPTS: u32 = 32;
/// A check with it holds wherever the path is there.
const ANY_VERSION: i32 = -1;

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

impl From<Unreported> for Broken {
    fn from(unreported: Unreported) -> Broken {
        Broken::Outdated(unreported.to_string())
    }
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
    /// A change that changes nothing.
    Quorum,
    Sync,
    Watch,
    /// The cluster's path is made as far as this.
    MakeRoot(String),
    Read(Read),
    Compare(Read),
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
    /// The request `id` was executed by the change `zxid`, which the known tree must show.
    Done {
        id: u64,
        zxid: u64,
        plan: Plan,
    },
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
    place: ClusterRoot,
    digest: Option<String>,
    phase: Phase,
    connected: Option<Connected>,
    mirror: Mirror,
    comparison: Comparison,
    /// How long a request may be.
    pub(super) limit: RequestLimit,
    waiting: VecDeque<Waiting>,
    /// Operations that the server has put off. They are sent again with the next heartbeat.
    throttled: Vec<Requested>,
    has_told_of_throttling: bool,
    /// When the unanswered pings were sent.
    pings: VecDeque<Nanos>,
    next_xid: i32,
    heard: Nanos,
    received: Nanos,
    last_zxid: i64,
    /// The session is continued with whatever the server has.
    takes_anything: bool,
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
    pub(super) fn new(
        now: Nanos,
        place: ClusterRoot,
        digest: Option<String>,
        connect: &Connect,
        limit: RequestLimit,
    ) -> ProtocolSession {
        let mut output = Vec::new();
        write_connect(connect, &mut output);
        ProtocolSession {
            place,
            digest,
            phase: Phase::Greeting,
            connected: None,
            mirror: Mirror::default(),
            comparison: Comparison::default(),
            limit,
            waiting: VecDeque::new(),
            throttled: Vec::new(),
            has_told_of_throttling: false,
            pings: VecDeque::new(),
            next_xid: 1,
            heard: now,
            received: now,
            last_zxid: connect.last_zxid,
            takes_anything: connect.session != 0 && connect.last_zxid == 0,
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
                    self.comparison.reported(path);
                    self.mirror.changed(path.to_owned());
                }
            }
            PING_XID => self.heard = self.pings.pop_front().unwrap_or(self.heard).max(self.heard),
            AUTH_XID if header.error == error::OK => {}
            AUTH_XID if header.error == error::CLOSED_REQUIRES_AUTHENTICATION => {
                return Err(self.refused(header.error, None));
            }
            AUTH_XID => return Err(self.refused(error::AUTH_FAILED, None)),
            xid => match self.waiting.pop_front() {
                Some(waiting) if waiting.xid == xid => {
                    self.heard = waiting.sent.max(self.heard);
                    self.answered(now, waiting.asked, header, body)?;
                }
                _ => return Err(Broken::Protocol("an answer to a question that was not asked").into()),
            },
        }
        self.run_next(now)
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
        if self.takes_anything {
            let steps = [Step::Check { path: root.clone(), version: ANY_VERSION }];
            self.ask(now, &Request::Multi(&steps), Asked::Quorum);
        }
        self.ask(now, &Request::Sync(&root), Asked::Sync);
        self.ask(now, &Request::Watch(&root), Asked::Watch);
        self.mirror.changed(String::new());
        self.run_next(now)
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
            // Whether the path is there or not: a refusal is agreed on like a change.
            (Asked::Quorum | Asked::Sync | Asked::Watch, error::OK) => {}
            (Asked::MakeRoot(part), error::OK) => match body.multi()? {
                None | Some((_, error::NODE_EXISTS)) if part == self.place.root => self.mirror.changed(String::new()),
                None | Some((_, error::NODE_EXISTS)) => {}
                Some((_, code)) => return Err(refused(code, || self.place.explain_part(code, &part))),
            },
            (Asked::Read(read), error::THROTTLED) => {
                self.mirror.answered();
                self.mirror.again(read);
            }
            (Asked::Read(read), _) => {
                self.mirror.answered();
                self.read(now, read, header, body)?;
            }
            (Asked::Compare(read), code) => {
                let reported = self.comparison.answered();
                if code != error::THROTTLED {
                    self.compared(read, code, body, &reported)?;
                }
            }
            (Asked::Op(request, plan), _) => self.op_answered(request, plan, header, body)?,
            (Asked::Close, _) => return Err(End::Left),
            (Asked::Quorum | Asked::Sync | Asked::Watch | Asked::MakeRoot(_), code) => {
                return Err(self.refused(code, None));
            }
        }
        Ok(())
    }

    /// Handles the answer to an operation.
    fn op_answered(&mut self, request: Requested, plan: Plan, header: ReplyHeader, body: Body<'_>) -> Result<(), End> {
        self.limit.answered(plan.bytes);
        let failed = match header.error {
            error::OK => body.multi()?,
            code => Some((plan.steps.len(), code)),
        };
        match failed {
            None => self.answers.push(Answer::Done { id: request.id, zxid: header.zxid.unsigned_abs(), plan }),
            Some((_, error::THROTTLED)) => {
                // It was not executed.
                if !std::mem::replace(&mut self.has_told_of_throttling, true) {
                    tracing::warn!("{}", self.place.explain(error::THROTTLED, None));
                }
                self.throttled.push(request);
            }
            Some((_, code @ (error::SESSION_EXPIRED | error::SESSION_MOVED))) => {
                self.answers.push(Answer::Told(request.id, Err(CoordinatorError::Disconnected)));
                return Err(self.refused(code, None));
            }
            Some((step, code)) => {
                // What the known tree allowed is refused: a change may not have been reported.
                if let Some(path) = plan.steps.get(step).and_then(|step| step.path().strip_prefix(&self.place.root)) {
                    self.comparison.doubt(path.to_owned());
                }
                self.answers.push(Answer::Refused { request, plan, step, code });
            }
        }
        Ok(())
    }

    /// Compares what a read found with the known tree. Paths that were `reported` since it was asked for may differ.
    fn compared(&mut self, read: Read, code: i32, body: Body<'_>, reported: &BTreeSet<String>) -> Result<(), End> {
        match (read, code) {
            (Read::Data(paths), error::OK) => {
                for (path, found) in paths.into_iter().zip(body.data()?).filter(|(path, _)| !reported.contains(path)) {
                    let found = match found {
                        Ok(found) => Some(found),
                        Err(error::NO_NODE) => None,
                        Err(code) => return Err(self.refused(code, Some(&path))),
                    };
                    self.comparison.found(&self.mirror, path, found)?;
                }
            }
            (Read::Children(path), error::OK) => {
                Comparison::children(&self.mirror, &path, body.children()?, reported)?;
            }
            // Its removal was reported, or the comparison of its value finds it.
            (Read::Children(_), error::NO_NODE) => {}
            (Read::Children(path), code) => return Err(self.refused(code, Some(&path))),
            (Read::Data(_), code) => return Err(self.refused(code, None)),
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
                        Ok((value, stat)) => self.mirror.found(path, value, stat)?,
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
    fn run_next(&mut self, now: Nanos) -> Result<(), End> {
        while let Some(read) = self.mirror.next_read() {
            self.ask_read(now, read, Asked::Read);
        }
        if !self.mirror.is_settled() || self.mirror.get("").is_none() {
            return Ok(());
        }
        if self.phase == Phase::Reading && !self.is_prompt(now) {
            return Ok(());
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
        for answer in &self.answers {
            if let Answer::Done { zxid, plan, .. } = answer {
                plan.check_reported(&self.mirror, *zxid)?;
            }
        }
        self.tell_answers(now);
        Ok(())
    }

    fn ask_read(&mut self, now: Nanos, read: Read, asked: impl FnOnce(Read) -> Asked) {
        let whole = |path: &String| format!("{}{path}", self.place.root);
        match &read {
            Read::Data(paths) => {
                let paths: Vec<String> = paths.iter().map(whole).collect();
                self.ask(now, &Request::Data(&paths), asked(read));
            }
            Read::Children(path) => {
                let path = whole(path);
                self.ask(now, &Request::Children(&path), asked(read));
            }
        }
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
                    Answer::Done { id, zxid, .. } => (id, Ok(zxid)),
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
                if let Some(why) = self.limit.refusal(now, plan.bytes) {
                    return self.answers.push(Answer::Told(request.id, Err(CoordinatorError::Refused(why))));
                }
                let xid = self.next_xid();
                write_request(xid, &Request::Multi(&plan.steps), &mut self.output);
                self.waiting.push_back(Waiting { xid, sent: now, asked: Asked::Op(request, plan) });
            }
            Err(error) => self.answers.push(Answer::Told(request.id, Err(error))),
        }
    }

    /// Sends a heartbeat, and what is due with it: operations that were put off, and a part of the comparison.
    pub(super) fn ping(&mut self, now: Nanos) {
        write_request(PING_XID, &Request::Ping, &mut self.output);
        self.pings.push_back(now);
        if !self.is_up() {
            return;
        }
        for request in std::mem::take(&mut self.throttled) {
            self.send(now, request);
        }
        if let Some(read) = self.comparison.next_read(now, &self.mirror) {
            self.ask_read(now, read, Asked::Compare);
        }
        if self.mirror.is_settled() {
            self.tell_answers(now);
        }
    }

    /// Asks the server to end the session.
    pub(super) fn leave(&mut self, now: Nanos) {
        self.ask(now, &Request::Close, Asked::Close);
    }

    /// Why operations wait for the next heartbeat, if some do.
    pub(super) fn why_put_off(&self) -> Option<String> {
        (!self.throttled.is_empty()).then(|| self.place.explain(error::THROTTLED, None))
    }

    /// Bytes of the longest operation that is not answered.
    pub(super) fn longest_unanswered(&self) -> usize {
        let bytes = |waiting: &Waiting| if let Asked::Op(_, plan) = &waiting.asked { plan.bytes } else { 0 };
        self.waiting.iter().map(bytes).max().unwrap_or(0)
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
            Answer::Told(id, _) | Answer::Done { id, .. } | Answer::Refused { request: Requested { id, .. }, .. } => id,
        });
        let put_off = self.throttled.into_iter().map(|request| request.id);
        for id in held.chain(asked).chain(put_off) {
            self.events.push(CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Disconnected) });
        }
        self.events
    }
}

/// The meaning of a refusal with `code`; `explain` makes the text.
fn refused(code: i32, explain: impl FnOnce() -> String) -> End {
    match code {
        error::SESSION_MOVED => Broken::Protocol("the session has moved to another server").into(),
        _ => Broken::Refused(explain()).into(),
    }
}

#[cfg(test)]
#[path = "protocol_session_tests.rs"]
mod tests;
