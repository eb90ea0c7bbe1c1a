//! The routes of a session: which node it asks for them, when it accepts an update, and which node an operation goes
//! to.
//!
//! A node that never reached the coordinator answers, and knows nothing; one that has lost it knows what was. So no answer
//! alone is the last word: after one that helps nothing the next node is asked, and connected to if there is no link.
//!
//! Belongs to the session's thread.

use super::{Session, TICK};
use crate::link::{Link, Pending};
use crate::options::ClientError;
use leeward_format::RegionId;
use leeward_format::cluster::{RegionMap, Scans};
use leeward_format::op::{Op, OpError, Request};
use leeward_format::routes::{Applied, RouteCache, RoutesUpdate};
use leeward_format::routing::Spread;
use leeward_format::table::TableName;
use mio::Token;
use rustc_hash::FxHashSet;
use std::time::{Duration, Instant};

/// How old routes may be before a session that is in use asks whether there are newer ones.
const REFRESH: Duration = Duration::from_secs(5);

/// Which node a session asks for routes or the region map, and when it asked last.
#[derive(Default)]
pub(super) struct Asking {
    next: usize,
    /// How many reads went to any member so far.
    turns: usize,
    asked: Option<Instant>,
    /// When a node was last asked because the answers of those with links did not help.
    asked_another: Option<Instant>,
    /// Answers about routes so far, of nodes that know at least as much as the session.
    answers: u64,
    /// The nodes whose last answer was older than the known routes, or without any.
    behind: FxHashSet<String>,
    /// The region map, if one has come since it was asked for.
    map: Option<RegionMap>,
}

impl Asking {
    /// The connection to `address` is gone, and so is what its node knew.
    pub(super) fn forget(&mut self, address: &str) {
        self.behind.remove(address);
    }
}

impl Session {
    /// Asks a node for its region map now. A map that is older than the known routes is not accepted.
    ///
    /// # Errors
    /// No node answers within [`crate::ClientOptions::deadline`].
    pub fn fetch_map(&mut self) -> Result<RegionMap, ClientError> {
        (self.asking.asked, self.asking.map) = (None, None);
        self.ask_until(Instant::now() + self.options.deadline, |session| session.asking.map.take(), |_| Request::Map)
    }

    /// The regions of `table` that an operation on a range of keys goes to. Asks for routes if they are not known.
    ///
    /// # Errors
    /// As [`Session::fetch_map`]; or not all regions of the table are known in time.
    pub(crate) fn spread(&mut self, table: &TableName) -> Result<Spread, ClientError> {
        let deadline = Instant::now() + self.options.deadline;
        if !self.routes.regions().has_table(table) {
            self.fetch_routes_until(deadline)?;
        }
        loop {
            match self.routes.regions().spread(table) {
                Spread::Unknown if Instant::now() >= deadline => {
                    return Err(OpError::Recovering(RegionId(0)).into());
                }
                Spread::Unknown => {
                    self.wait(self.options.retry_pause)?;
                    self.fetch_routes_until(deadline)?;
                }
                spread => return Ok(spread),
            }
        }
    }

    /// Asks for routes until a node has answered that knows any, or every seed has answered that it knows none.
    pub(super) fn fetch_routes_until(&mut self, deadline: Instant) -> Result<(), ClientError> {
        let before = self.asking.answers;
        self.asking.asked = None;
        let is_answered = |session: &mut Session| {
            let Asking { answers, behind, .. } = &session.asking;
            let is_hopeless = !behind.is_empty() && session.seeds.iter().all(|seed| behind.contains(seed));
            (*answers > before || is_hopeless).then_some(())
        };
        self.ask_until(deadline, is_answered, |session| Request::Routes { known: session.routes.version() })
    }

    /// The same, but that all nodes that answer know nothing is no error.
    pub(super) fn look_for_routes(&mut self, deadline: Instant) -> Result<(), ClientError> {
        match self.fetch_routes_until(deadline) {
            Err(ClientError::Unreachable { .. }) if !self.asking.behind.is_empty() => Ok(()),
            result => result,
        }
    }

    fn ask_until<T>(
        &mut self,
        deadline: Instant,
        answer: impl Fn(&mut Session) -> Option<T>,
        question: impl Fn(&Session) -> Request,
    ) -> Result<T, ClientError> {
        loop {
            if matches!(self.lack, Some(ClientError::Op(_)))
                && let Some(lack) = self.lack.take()
            {
                return Err(lack);
            }
            if let Some(answer) = answer(self) {
                return Ok(answer);
            }
            let now = Instant::now();
            if now >= deadline {
                let reason = self.last_failure.clone();
                return Err(ClientError::Unreachable { seeds: self.seeds.join(", "), reason });
            }
            self.ask(question(self), now);
            self.flush(now);
            self.wait(TICK.min(deadline - now))?;
        }
    }

    /// Whether the backups of its region answer this operation, and answer nothing stale.
    pub(super) fn is_for_backups(&self, table: &TableName, op: &Op) -> bool {
        op.is_scan() && self.routes.scans(table) == Scans::Backups && !self.follows_a_write(table, op)
    }

    /// Whether a write that this scan may show is not answered yet: the primary executes the scan after it, and a backup may
    /// not know it.
    fn follows_a_write(&self, table: &TableName, scan: &Op) -> bool {
        let may_show = |pending: &Pending| {
            let write = &pending.op;
            write.writes_data() && pending.table == *table && !self.is_apart(table, scan, write)
        };
        self.parked.iter().any(|(_, pending)| may_show(pending))
            || self.links.values().flat_map(Link::pendings).any(may_show)
    }

    /// Whether a write is certainly of no key of the scan. Regions of tables with ranges of keys may have other bounds than the
    /// routes say. A key's token never goes to another region.
    fn is_apart(&self, table: &TableName, scan: &Op, write: &Op) -> bool {
        let Some(key) = write.key() else { return false };
        let is_outside = scan.range().is_some_and(|(start, end)| key < start || end.is_some_and(|end| key >= end));
        let of = |op: &Op| op.region_in(&self.routes, table).map(|route| route.region);
        is_outside || matches!(scan, Op::In { .. }) && of(scan).zip(of(write)).is_some_and(|(a, b)| a != b)
    }

    /// The member to which a read that any member may answer goes first: the live members in turn, or the backups.
    pub(super) fn any_member(&mut self, pending: &Pending) -> Option<String> {
        let Op::Stale { at_most_ms, read } = &pending.op else { return None };
        if pending.tries > 1 {
            return None;
        }
        let is_for_backups =
            *at_most_ms == 0 && read.range().is_some() && self.routes.scans(&pending.table) == Scans::Backups;
        let region = pending.op.region_in(&self.routes, &pending.table)?;
        let servers = region.primary.iter().filter(|_| !is_for_backups).chain(&region.backups);
        let addresses: Vec<&str> = servers.filter_map(|server| self.routes.address(*server)).collect();
        self.asking.turns = self.asking.turns.wrapping_add(1);
        let turn = self.asking.turns.checked_rem(addresses.len())?;
        Some(addresses[turn].to_owned())
    }

    /// Accepts the region map, if it is not older than the known routes.
    pub(super) fn take_map(&mut self, token: Token, map: RegionMap) {
        if map.version >= self.routes.version() {
            self.asking.map = Some(map);
        } else {
            self.note_behind(token, map.version);
        }
    }

    /// A node knows less than the session.
    fn note_behind(&mut self, token: Token, version: u64) {
        let Some(Link { address, .. }) = self.links.get(&token) else { return };
        let what = if version == 0 { "it knows no region" } else { "it knows only older routes" };
        self.last_failure = format!("{address}: {what}; /readyz of its admin port says why");
        self.asking.behind.insert(address.clone());
    }

    /// Applies routes that a node sent. If they are newer, parked operations are tried at once, and the link to a
    /// server that is no longer primary and owes answers is given up.
    pub(super) fn take_routes(&mut self, token: Token, update: RoutesUpdate, now: Instant) {
        let version = update.version;
        if version == 0 || version < self.routes.version() {
            return self.note_behind(token, version);
        }
        if let Some(Link { address, .. }) = self.links.get(&token) {
            self.asking.behind.remove(address);
        }
        match self.routes.apply(update) {
            Err(error) => self.fail(token, &error.to_string()),
            // Asks for all routes.
            Ok(Applied::Unfit) => self.ask_routes(now),
            Ok(Applied::Known) => self.asking.answers += 1,
            Ok(Applied::Newer) => {
                self.asking.answers += 1;
                self.follow_routes(now);
            }
        }
    }

    fn follow_routes(&mut self, now: Instant) {
        for (at, _) in &mut self.parked {
            *at = now;
        }
        let routes = &self.routes;
        for link in self.links.values_mut() {
            let is_elsewhere =
                |pending: &Pending| primary_address(routes, &pending.table, &pending.op) != Some(&link.address);
            if link.pendings().any(is_elsewhere) {
                link.depose();
            }
        }
        self.leave_deposed(now);
    }

    /// Gives up the links to servers that owe answers, and have not been primaries since the operations were sent.
    pub(super) fn leave_deposed(&mut self, now: Instant) {
        let timeout = self.options.answer_timeout;
        self.fail_where("it does not answer and is not the primary any more", |link| link.is_deposed(now, timeout));
    }

    /// Asks for new routes now and then, since options of tables change although no operation fails.
    pub(super) fn refresh_routes(&mut self, now: Instant) {
        let is_connected = self.links.values().any(Link::is_connected);
        if is_connected && now - *self.asking.asked.get_or_insert(now) >= REFRESH {
            self.ask_routes(now);
        }
    }

    /// Asks some node for new routes, unless one was asked a moment ago.
    pub(super) fn ask_routes(&mut self, now: Instant) {
        self.ask(Request::Routes { known: self.routes.version() }, now);
    }

    /// Asks some node, unless one was asked a moment ago: one that is connected, owes no old answer and is not behind. If there
    /// is none, or operations wait although those were asked, it is the next address of the seeds and the known servers.
    fn ask(&mut self, question: Request, now: Instant) {
        let pause = self.options.retry_pause * 4;
        if self.asking.asked.is_some_and(|asked| now - asked < pause) {
            return;
        }
        self.asking.asked = Some(now);
        self.asking.next = self.asking.next.wrapping_add(1);
        let (next, asks_another) = (self.asking.next, self.must_ask_another(now));
        let (timeout, behind) = (self.options.answer_timeout, &self.asking.behind);
        let is_healthy = |link: &Link| link.is_connected() && link.oldest().is_none_or(|sent| now - sent < timeout);
        let may_help = |link: &&mut Link| !asks_another && is_healthy(link) && !behind.contains(&link.address);
        let linked: Vec<&mut Link> = self.links.values_mut().filter(may_help).collect();
        let count = linked.len();
        if let Some(link) = linked.into_iter().nth(next.checked_rem(count).unwrap_or(0)) {
            return link.ask(question);
        }
        let mut addresses = self.seeds.clone();
        for (_, address) in self.routes.servers() {
            if !addresses.iter().any(|known| known == address) {
                addresses.push(address.to_owned());
            }
        }
        let is_new = |address: &&String| !self.links.values().any(|link| link.address == **address);
        let new: Vec<&String> = addresses.iter().filter(|address| asks_another && is_new(address)).collect();
        let candidates = if new.is_empty() { addresses.iter().collect() } else { new };
        let Some(address) = next.checked_rem(candidates.len()).map(|turn| candidates[turn]) else { return };
        match self.links.values_mut().find(|link| link.address == *address) {
            Some(link) if is_healthy(link) => link.ask(question),
            // The first answer on a new connection has the routes.
            _ => drop(self.link_to(address, now)),
        }
    }

    /// Whether an operation waits although the nodes with links were asked for [`crate::ClientOptions::answer_timeout`]: they
    /// may all have lost the coordinator. True once in that time, so that a failover makes few connections.
    fn must_ask_another(&mut self, now: Instant) -> bool {
        let (timeout, deadline) = (self.options.answer_timeout, self.options.deadline);
        let is_due = self.asking.asked_another.is_none_or(|asked| now - asked >= timeout);
        let has_waited = |pending: &Pending| pending.deadline + timeout <= now + deadline;
        let must = is_due && self.parked.iter().any(|(_, pending)| has_waited(pending));
        if must {
            self.asking.asked_another = Some(now);
        }
        must
    }
}

/// Native address of the node that `op` goes to: the primary of its region. An operation without a region goes to any
/// node. So does one on an unknown table, or on keys that no route is known for: a node may know more, or returns an error.
/// (A user that may not see a table, or a part of it, is told no routes there.)
pub(super) fn primary_address<'a>(routes: &'a RouteCache, table: &str, op: &Op) -> Option<&'a str> {
    let is_of_keys = op.key().is_some() || op.range().is_some();
    match op.region_in(routes, table) {
        Some(region) => routes.address(region.primary?),
        None if is_of_keys || op.is_for_any_node() || !routes.regions().has_table(table) => {
            routes.servers().next().map(|(_, address)| address)
        }
        None => None,
    }
}
