//! The blocking client: a pool of [`Session`]s, each used by one call at a time. Any thread may call any method.

use crate::access::Access;
use crate::options::{ClientError, ClientOptions};
use crate::session::{Session, stale};
use bytes::Bytes;
use leeward_format::cluster::{Intent, RegionMap, RegionRequest};
use leeward_format::op::{
    Condition, ExpireIf, Lifetime, Op, OpError, OpResult, Pair, PutOptions, RangeOp, Written, check_range,
};
use leeward_format::routing::Spread;
use leeward_format::table::{NewTable, TableChange, TableName};
use leeward_format::user::{UserChange, UserName, UserShown};
use leeward_format::{RegionId, ServerId};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A blocking handle on one table, cheap to clone and shared by any number of threads.
///
/// Each call waits for its answer, up to [`ClientOptions::deadline`]. Concurrent calls use several connections. Keys
/// and values are anything that converts into [`Bytes`], such as `&'static str`, `String` and `Vec<u8>`. A key has 1 to
/// 4096 bytes, a value up to 1 MiB.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
    table: TableName,
}

/// A value that was read, and how stale it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale<T> {
    /// What was read. `age` bounds how stale it is.
    pub value: T,
    /// The value includes every write that was acknowledged at least this long before the read, which took place during
    /// the call. Zero: the primary answered.
    pub age: Duration,
}

#[derive(Debug)]
struct Inner {
    seeds: Vec<String>,
    access: Access,
    options: ClientOptions,
    idle: Mutex<Vec<Session>>,
    /// Operations in flight, of all threads. `room` wakes threads that wait for a lower number.
    under_way: Mutex<usize>,
    room: Condvar,
}

/// Most regions that are asked at the same time.
pub(crate) const AT_ONCE: usize = 256;

/// Room for this many operations, until it is dropped.
struct Room<'a>(&'a Inner, usize);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        *self.0.under_way.lock() -= self.1;
        self.0.room.notify_all();
    }
}

impl Inner {
    /// Waits until `ops` more operations may be in flight.
    fn room(&self, ops: usize) -> Result<Room<'_>, ClientError> {
        let deadline = Instant::now() + self.options.deadline;
        let mut under_way = self.under_way.lock();
        while *under_way > 0 && *under_way + ops > self.options.max_outstanding {
            if self.room.wait_until(&mut under_way, deadline).timed_out() {
                return Err(ClientError::Busy);
            }
        }
        *under_way += ops;
        Ok(Room(self, ops))
    }
}

impl Client {
    /// Connects to a cluster by the native [addresses](crate::Address) (`host:port`) of one or more of its nodes.
    ///
    /// ```
    /// use leeward_client::{Client, ClientError, ClientOptions};
    /// use std::time::Duration;
    ///
    /// // Nothing listens there, and the client soon returns an error.
    /// let options = ClientOptions { connect_within: Duration::from_millis(50), ..ClientOptions::default() };
    /// let refused = Client::connect(&["127.0.0.1:1"], options);
    /// assert!(matches!(refused, Err(ClientError::Unreachable { .. })));
    /// ```
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn connect<S: AsRef<str>>(seeds: &[S], options: ClientOptions) -> Result<Client, ClientError> {
        let session = Session::connect(seeds, options.clone())?;
        let access = session.access().clone();
        let seeds = seeds.iter().map(|seed| seed.as_ref().to_string()).collect();
        let table = options.table.clone();
        let (idle, under_way, room) = (Mutex::new(vec![session]), Mutex::default(), Condvar::new());
        Ok(Client { inner: Arc::new(Inner { seeds, access, options, idle, under_way, room }), table })
    }

    /// The users of the cluster, by name.
    ///
    /// # Errors
    /// As [`Client::get`]; [`OpError::NotPermitted`] without the right to change users.
    pub fn users(&self) -> Result<Vec<UserShown>, ClientError> {
        match self.one(Op::ListUsers)? {
            OpResult::Users(users) => Ok(users),
            other => Err(mismatch(other)),
        }
    }

    /// Makes or changes a user. Each node that is connected to the coordinator follows within a second.
    ///
    /// # Errors
    /// As [`Client::users`]; [`OpError::Invalid`] if the change is not possible, or would lock everybody out.
    pub fn change_user(&self, change: UserChange) -> Result<(), ClientError> {
        match self.one(Op::ChangeUser { change: Box::new(change) })? {
            OpResult::Done => Ok(()),
            other => Err(mismatch(other)),
        }
    }

    /// Removes users, those that there are; `None`: all, so that everybody is let in again.
    ///
    /// # Errors
    /// As [`Client::change_user`].
    pub fn remove_users(&self, names: Option<Vec<UserName>>) -> Result<(), ClientError> {
        match self.one(Op::RemoveUsers { names })? {
            OpResult::Done => Ok(()),
            other => Err(mismatch(other)),
        }
    }

    /// As [`Session::access`].
    #[doc(hidden)]
    pub fn access(&self) -> &Access {
        &self.inner.access
    }

    /// A handle on another table, which shares this one's connections. If there is no such table, operations fail.
    pub fn table(&self, table: TableName) -> Client {
        Client { inner: Arc::clone(&self.inner), table }
    }

    /// The value at `key`, or `None` if the key does not exist.
    ///
    /// # Errors
    /// - [`ClientError::Op`] if the cluster refuses the key or does not answer in time. The variant of [`OpError`] says
    ///   what to do.
    /// - [`ClientError::Busy`] if too many operations were in flight until the deadline.
    /// - As [`Session::connect`], if another connection is needed and cannot be made.
    pub fn get(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>, ClientError> {
        match self.one(Op::Get { key: key.into() })? {
            OpResult::Value(value) => Ok(value),
            other => Err(mismatch(other)),
        }
    }

    /// The value at `key`, or `None` if the key did not exist, as of an instant that is at most `at_most` ago. Any
    /// member in sync may answer, if the table's [options](crate::TableOptions::reads) allow it. If they do not, or the
    /// member cannot answer, the primary does, as for [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_stale(&self, key: impl Into<Bytes>, at_most: Duration) -> Result<Stale<Option<Bytes>>, ClientError> {
        match self.aged(stale(Op::Get { key: key.into() }, at_most))? {
            (OpResult::Value(value), age) => Ok(Stale { value, age }),
            (other, _) => Err(mismatch(other)),
        }
    }

    /// Sets `key`. When it returns, the write is on every replica in sync, or on a quorum of them, as the table's
    /// options say.
    ///
    /// # Errors
    /// As [`Client::get`]. After [`OpError::Unknown`] the write may have happened. A put is only retried then if
    /// [`ClientOptions::retry_puts`] is set.
    pub fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<(), ClientError> {
        self.put_with(key, value, PutOptions::default()).map(drop)
    }

    /// Sets `key` under a condition, with an expiry, or both. Returns whether it was set. A put with a condition is
    /// retried while its outcome is unknown, and executed once.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn put_with(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        options: PutOptions,
    ) -> Result<Written, ClientError> {
        let PutOptions { when, lifetime } = options;
        match self.one(Op::Put { key: key.into(), value: value.into(), when, want_old: false, lifetime })? {
            OpResult::Put { done, version, .. } => Ok(Written { done, version }),
            other => Err(mismatch(other)),
        }
    }

    /// Version, expiry and value of `key`; `None` if the key does not exist.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_pair(&self, key: impl Into<Bytes>) -> Result<Option<Pair>, ClientError> {
        match self.one(Op::GetPair { key: key.into(), want_value: true })? {
            OpResult::Pair(pair) => Ok(pair),
            other => Err(mismatch(other)),
        }
    }

    /// Changes when `key` expires, if the key exists and the condition holds. Returns whether it did.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn expire(&self, key: impl Into<Bytes>, lifetime: Lifetime, when: ExpireIf) -> Result<bool, ClientError> {
        match self.one(Op::Expire { key: key.into(), lifetime, when, want_old: false })? {
            OpResult::Put { done, .. } => Ok(done),
            other => Err(mismatch(other)),
        }
    }

    /// Removes `key`. Returns the value it had.
    ///
    /// # Errors
    /// As [`Client::put`]; [`OpError::AnswerGone`](crate::OpError::AnswerGone) if an attempt whose answer was lost
    /// removed it, so that the value is no longer known.
    pub fn delete(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>, ClientError> {
        match self.one(Op::Delete { key: key.into(), when: Condition::Always })? {
            OpResult::Deleted { done: true, old: None, .. } => Err(OpError::AnswerGone { done: true }.into()),
            OpResult::Deleted { old, .. } => Ok(old),
            other => Err(mismatch(other)),
        }
    }

    /// Removes `key` if the condition holds. Returns whether it did.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn delete_if(&self, key: impl Into<Bytes>, when: Condition) -> Result<Written, ClientError> {
        match self.one(Op::Delete { key: key.into(), when })? {
            OpResult::Deleted { done, version, .. } => Ok(Written { done, version }),
            other => Err(mismatch(other)),
        }
    }

    /// Removes every key from `start` to `end`, exclusive. An empty start and no end mean no bounds. It is atomic in
    /// each region, but not over regions: after an error some regions may be done.
    ///
    /// # Errors
    /// As [`Client::put`]; also [`OpError::Invalid`] for a range that is empty or reversed.
    pub fn delete_range(&self, start: impl Into<Bytes>, end: Option<Bytes>) -> Result<(), ClientError> {
        let mut start = start.into();
        check_range(&start, end.as_deref())?;
        if let Some(results) =
            self.everywhere(AT_ONCE, |_| RangeOp::DeleteRange { start: start.clone(), end: end.clone() })?
        {
            let is_done = |result: &OpResult| matches!(result, OpResult::RangeDeleted { resume: None });
            return results.into_iter().find(|result| !is_done(result)).map_or(Ok(()), |other| Err(mismatch(other)));
        }
        loop {
            match self.one(Op::DeleteRange { start: start.clone(), end: end.clone() })? {
                OpResult::RangeDeleted { resume: None } => return Ok(()),
                OpResult::RangeDeleted { resume: Some(next) } if next > start => start = next,
                other => return Err(mismatch(other)),
            }
        }
    }

    /// Adds `delta` to the decimal integer at `key`, and returns the sum. A missing key counts as 0.
    ///
    /// # Errors
    /// As [`Client::put`]; also [`OpError::Invalid`] if the value is no integer or the sum overflows.
    pub fn add(&self, key: impl Into<Bytes>, delta: i64) -> Result<i64, ClientError> {
        match self.one(Op::Add { key: key.into(), delta })? {
            OpResult::Integer(sum) => Ok(sum),
            other => Err(mismatch(other)),
        }
    }

    /// Appends `suffix` to the value at `key`, and returns its new length in bytes. A missing key counts as empty.
    ///
    /// # Errors
    /// As [`Client::put`]; also [`OpError::Invalid`] if the value would be too long.
    pub fn append(&self, key: impl Into<Bytes>, suffix: impl Into<Bytes>) -> Result<i64, ClientError> {
        match self.one(Op::Append { key: key.into(), suffix: suffix.into() })? {
            OpResult::Integer(length) => Ok(length),
            other => Err(mismatch(other)),
        }
    }

    /// For operators: `region` continues without the volumes of `server` that it waits for. Data that only they hold is
    /// lost.
    ///
    /// # Errors
    /// The region does not wait for that server, or the cluster does not answer in time.
    pub fn accept_loss(&self, region: RegionId, server: ServerId) -> Result<(), ClientError> {
        match self.one(Op::AcceptLoss { region, server })? {
            OpResult::Done => Ok(()),
            other => Err(mismatch(other)),
        }
    }

    /// Records a request for a region. Its primary executes it while it serves.
    ///
    /// # Errors
    /// The request cannot be executed, or the cluster does not answer in time.
    pub fn request(&self, region: RegionId, request: RegionRequest) -> Result<(), ClientError> {
        match self.one(Op::RequestRegion { region, request })? {
            OpResult::Done => Ok(()),
            other => Err(mismatch(other)),
        }
    }

    /// Requests that a server leaves every group, for good or for a restart; `None`: it may stay.
    ///
    /// # Errors
    /// Too few servers would be left, or the cluster does not answer in time.
    pub fn intend(&self, server: ServerId, intent: Option<Intent>) -> Result<(), ClientError> {
        match self.one(Op::Intend { server, intent })? {
            OpResult::Done => Ok(()),
            other => Err(mismatch(other)),
        }
    }

    /// Makes a table with its regions, atomically. They are served a moment later; until then operations on them are
    /// retried.
    ///
    /// # Errors
    /// The table exists, its options or regions are not valid, or the cluster does not answer in time; after
    /// [`OpError::Unknown`] it may have been made.
    pub fn create_table(&self, table: NewTable) -> Result<(), ClientError> {
        match self.one(Op::CreateTable { table: Box::new(table) })? {
            OpResult::Done => Ok(()),
            other => Err(mismatch(other)),
        }
    }

    /// Drops a table and all of its data. Its regions are removed a moment later.
    ///
    /// # Errors
    /// There is no such table, it is the default one, or the cluster does not answer in time; after
    /// [`OpError::Unknown`] it may have been dropped.
    pub fn drop_table(&self, table: TableName) -> Result<(), ClientError> {
        match self.one(Op::DropTable { table })? {
            OpResult::Done => Ok(()),
            other => Err(mismatch(other)),
        }
    }

    /// Changes options of a table while it serves. Its regions follow a moment later. Members that must be built anew
    /// follow one after the other.
    ///
    /// # Errors
    /// There is no such table, the options are not valid, or the cluster does not answer in time.
    pub fn alter_table(&self, change: TableChange) -> Result<(), ClientError> {
        match self.one(Op::AlterTable { change: Box::new(change) })? {
            OpResult::Done => Ok(()),
            other => Err(mismatch(other)),
        }
    }

    /// Estimates the pairs from `start` to `end`, exclusive (no end: from `start` on), and the bytes of their keys and
    /// values. Overwritten, deleted and expired pairs count until compactions have removed them.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn approximate(&self, start: impl Into<Bytes>, end: Option<Bytes>) -> Result<(u64, u64), ClientError> {
        let (mut all, mut start) = ((0, 0), start.into());
        if let Some(results) =
            self.everywhere(AT_ONCE, |_| RangeOp::Approximate { start: start.clone(), end: end.clone() })?
        {
            return results.into_iter().try_fold(all, |all, result| match result {
                OpResult::Approximation { pairs, bytes, .. } => Ok((all.0 + pairs, all.1 + bytes)),
                other => Err(mismatch(other)),
            });
        }
        loop {
            match self.one(Op::Approximate { start, end: end.clone() })? {
                OpResult::Approximation { pairs, bytes, resume } => {
                    all = (all.0 + pairs, all.1 + bytes);
                    match resume {
                        Some(next) => start = next,
                        None => return Ok(all),
                    }
                }
                other => return Err(mismatch(other)),
            }
        }
    }

    /// Executes a batch: operations on one region in order (but for what [`Session::submit`] says), regions in
    /// parallel. Returns one result for each operation. Waits while [as many operations as allowed](ClientOptions::max_outstanding) are in flight.
    ///
    /// # Errors
    /// [`ClientError::Busy`] if they are until the deadline; or no connection could be made. Refused operations are
    /// errors among the results.
    pub fn execute(&self, ops: Vec<Op>) -> Result<Vec<OpResult>, ClientError> {
        let _room = self.inner.room(ops.len())?;
        self.with_session(|session| session.execute_in(&self.table, ops))
    }

    /// Fetches the region map.
    ///
    /// # Errors
    /// No node answers within the deadline.
    pub fn region_map(&self) -> Result<RegionMap, ClientError> {
        self.with_session(Session::fetch_map)
    }

    /// The results of all regions for `op`, which gets the number of regions, in any order; `None` if keys are not
    /// partitioned by hash. `at_once` regions are asked in parallel.
    pub(crate) fn everywhere(
        &self,
        at_once: usize,
        op: impl FnOnce(usize) -> RangeOp,
    ) -> Result<Option<Vec<OpResult>>, ClientError> {
        let Spread::All(regions) = self.with_session(|session| session.spread(&self.table))? else { return Ok(None) };
        let (op, mut results) = (op(regions.len()), Vec::with_capacity(regions.len()));
        for regions in regions.chunks(at_once) {
            let ops = regions.iter().map(|region| op.clone().within(*region)).collect();
            results.extend(self.execute(ops)?);
        }
        results.into_iter().map(answered).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn one(&self, op: Op) -> Result<OpResult, ClientError> {
        self.aged(op).map(|(result, _)| result)
    }

    /// The result of an operation, and how stale it may be.
    pub(crate) fn aged(&self, op: Op) -> Result<(OpResult, Duration), ClientError> {
        let result = self.execute(vec![op])?.pop().expect("one result an operation");
        let (result, age_ms) = result.fresh();
        Ok((answered(result)?, Duration::from_millis(age_ms.into())))
    }

    fn with_session<T>(&self, call: impl FnOnce(&mut Session) -> Result<T, ClientError>) -> Result<T, ClientError> {
        let idle = self.inner.idle.lock().pop();
        let mut session = match idle {
            Some(session) => session,
            // The cluster existed when the client was made. So this waits for it as long as for an answer.
            None => {
                let options = &self.inner.options;
                let options = ClientOptions { connect_within: options.deadline, ..options.clone() };
                Session::connect(&self.inner.seeds, options)?
            }
        };
        let result = call(&mut session);
        self.inner.idle.lock().push(session);
        result
    }
}

/// The result, if it is no error.
fn answered(result: OpResult) -> Result<OpResult, ClientError> {
    match result {
        OpResult::Error(error) => Err(error.into()),
        result => Ok(result),
    }
}

pub(crate) fn mismatch(result: OpResult) -> ClientError {
    ClientError::Mismatch(Box::new(result))
}
