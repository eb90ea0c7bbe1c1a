//! The table of commands: names, arity, what `COMMAND` says of them, and the functions that execute them.
//!
//! Sorted by name, so that a command is found by bisection. A test checks the order.

use super::session::Session;
use super::work::Work;
use super::{Context, acl, cluster, connection, expiry, info, scan, strings};
use crate::metrics::Class;
use crate::resp::Reply;
use bytes::Bytes;
use leeward_format::user::Rights;

/// What a command needs besides its arguments. It is declared here, so that no command goes without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing: it is how a user comes in, or leaves.
    Nothing,
    /// Some user.
    User,
    /// Some right on the selected table.
    Table,
    /// What its operations need, on the selected table.
    Operations,
    /// What its operations need, and to read its keys: it answers what they had.
    OldToo,
    /// The right to operate, on all tables.
    Operate,
    /// `CLIENT`: to operate, to see others.
    OfClient,
    /// `ACL`: to change users, or to see the log, or nothing.
    OfAcl,
}

impl Needs {
    /// The rights on all tables that a command with these arguments needs.
    pub(super) fn everywhere(self, args: &[Bytes]) -> Rights {
        let is = |name: &str| args.get(1).is_some_and(|arg| arg.eq_ignore_ascii_case(name.as_bytes()));
        match self {
            Needs::Operate => Rights::OPERATE,
            Needs::OfClient if is("LIST") => Rights::OPERATE,
            Needs::OfAcl if is("LOG") => Rights::OPERATE,
            Needs::OfAcl if ["WHOAMI", "CAT", "GENPASS", "HELP"].into_iter().any(is) => Rights::NONE,
            Needs::OfAcl => Rights::ADMIN,
            Needs::Nothing | Needs::User | Needs::Table | Needs::Operations | Needs::OldToo | Needs::OfClient => {
                Rights::NONE
            }
        }
    }

    /// Whether it is about the selected table.
    pub(super) fn is_of_table(self) -> bool {
        matches!(self, Needs::Table | Needs::Operations | Needs::OldToo)
    }

    /// Rights that its operations need besides their own.
    pub(super) fn also(self) -> Rights {
        if self == Needs::OldToo { Rights::READ } else { Rights::NONE }
    }
}

/// The function that executes a command. Its arguments, name included, were checked against its arity.
pub(super) enum Run {
    /// Looks at its arguments only.
    Args(fn(&[Bytes]) -> Work),
    /// Looks at the node too.
    Context(fn(&[Bytes], &mut Context) -> Work),
    /// Looks at and changes its connection too.
    Session(fn(&[Bytes], &mut Session, &mut Context) -> Work),
}

/// One command.
pub struct Spec {
    /// Name, in lower case.
    pub name: &'static str,
    /// Number of arguments, the name included; negative: at least that many.
    pub arity: i32,
    /// What it does with the store.
    pub class: Class,
    pub(super) needs: Needs,
    /// Position of its first key, of its last (negative: from the end) and the step; zeros: no keys.
    pub keys: (i32, i32, i32),
    /// One line on what it does.
    pub summary: &'static str,
    /// Its arguments, as in a manual.
    pub usage: &'static str,
    pub(super) run: Run,
}

const NO_KEY: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const KEYS: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);

macro_rules! commands {
    ($($name:literal $usage:literal $arity:literal $class:ident $needs:ident $keys:ident $run:ident($function:expr) $summary:literal;)*) => {
        static COMMANDS: &[Spec] = &[$(Spec {
            name: $name,
            arity: $arity,
            class: Class::$class,
            needs: Needs::$needs,
            keys: $keys,
            summary: $summary,
            usage: $usage,
            run: Run::$run($function),
        }),*];
    };
}

#[rustfmt::skip]
commands! {
    "acl" "subcommand [argument ...]" -2 Other OfAcl NO_KEY Session(acl::acl) "Users and their rights: WHOAMI, LIST, USERS, GETUSER, SETUSER, DELUSER, CAT, LOG, GENPASS, DRYRUN, HELP";
    "append" "key value" 3 Write Operations ONE_KEY Args(strings::append) "Appends to a value; answers its new length";
    "asking" "" 1 Other User NO_KEY Session(|_, session, _| cluster::asking(session)) "Has the next command forwarded, and not redirected";
    "auth" "[username] password" -2 Other Nothing NO_KEY Session(connection::auth) "Names the user of the connection";
    "client" "subcommand [argument ...]" -2 Other OfClient NO_KEY Session(connection::client) "SETINFO, SETNAME, GETNAME, ID, INFO, LIST";
    "cluster" "subcommand [argument ...]" -2 Other Table NO_KEY Session(|args, session, context| cluster::cluster(args, session, context)) "SLOTS, SHARDS, NODES, INFO, MYID, KEYSLOT: of a table that is partitioned by slots";
    "command" "[subcommand [name ...]]" -1 Other User NO_KEY Args(info::command) "Tells of commands: COUNT, INFO, DOCS, LIST";
    "config" "GET pattern [pattern ...]" -2 Other Operate NO_KEY Context(info::config) "Tells the settings that Redis tools ask for";
    "dbsize" "" 1 Read Operations NO_KEY Session(|_, session, context| strings::dbsize(session, context)) "Estimates the number of keys";
    "decr" "key" 2 Write Operations ONE_KEY Args(strings::decr) "Subtracts 1 from an integer";
    "decrby" "key decrement" 3 Write Operations ONE_KEY Args(strings::decrby) "Subtracts from an integer";
    "del" "key [key ...]" -2 Write Operations KEYS Args(strings::del) "Removes keys; answers how many there were";
    "delex" "key [IFEQ value | IFNE value]" -2 Write Operations ONE_KEY Args(strings::delex) "Removes a key if it has a value, or another one";
    "echo" "message" 2 Other User NO_KEY Args(connection::echo) "Answers its argument";
    "exists" "key [key ...]" -2 Read Operations KEYS Args(strings::exists) "Counts how many of the keys exist";
    "expire" "key seconds [NX | XX | GT | LT]" -3 Write Operations ONE_KEY Args(expiry::expire) "Sets when a key expires";
    "expireat" "key unix-seconds [NX | XX | GT | LT]" -3 Write Operations ONE_KEY Args(expiry::expireat) "Sets when a key expires";
    "expiretime" "key" 2 Read Operations ONE_KEY Args(expiry::expiretime) "Answers when a key expires, in seconds since 1970";
    "get" "key" 2 Read Operations ONE_KEY Args(strings::get) "Answers a value";
    "getdel" "key" 2 Write OldToo ONE_KEY Args(strings::getdel) "Removes a key; answers its value";
    "getex" "key [EX seconds | PX milliseconds | EXAT unix-seconds | PXAT unix-milliseconds | PERSIST]" -2 Write Operations ONE_KEY Args(expiry::getex) "Answers a value, and sets when it expires";
    "hello" "[version [AUTH username password] [SETNAME name]]" -1 Other Nothing NO_KEY Session(connection::hello) "Chooses the protocol version";
    "incr" "key" 2 Write Operations ONE_KEY Args(strings::incr) "Adds 1 to an integer";
    "incrby" "key increment" 3 Write Operations ONE_KEY Args(strings::incrby) "Adds to an integer";
    "info" "[section ...]" -1 Other Operate NO_KEY Session(|args, session, context| info::info(args, session, context)) "Tells of the node";
    "kdelrange" "start end" 3 Write Operations NO_KEY Session(|args, session, context| scan::kdelrange(args, session, context)) "Removes the keys from start to before end";
    "keys" "pattern" 2 Scan Operations NO_KEY Session(|args, session, context| scan::keys(args, session, context)) "Answers the keys that match a pattern, in order";
    "kprefix" "prefix [REV] [LIMIT n] [KEYS]" -2 Scan Operations NO_KEY Session(|args, session, context| scan::kprefix(args, session, context)) "Answers the entries whose keys begin with a prefix, in order";
    "krange" "start end [REV] [LIMIT n] [KEYS]" -3 Scan Operations NO_KEY Session(|args, session, context| scan::krange(args, session, context)) "Answers the entries from start to before end, in order";
    "leeward.age" "" 1 Other User NO_KEY Args(|_| Work::Age) "Answers how stale what was read last may be, in milliseconds";
    "mget" "key [key ...]" -2 Read Operations KEYS Args(strings::mget) "Answers the values of several keys";
    "mset" "key value [key value ...]" -3 Write Operations PAIRS Args(strings::mset) "Sets several keys";
    "persist" "key" 2 Write Operations ONE_KEY Args(expiry::persist) "Makes a key that expires stay";
    "pexpire" "key milliseconds [NX | XX | GT | LT]" -3 Write Operations ONE_KEY Args(expiry::pexpire) "Sets when a key expires";
    "pexpireat" "key unix-milliseconds [NX | XX | GT | LT]" -3 Write Operations ONE_KEY Args(expiry::pexpireat) "Sets when a key expires";
    "pexpiretime" "key" 2 Read Operations ONE_KEY Args(expiry::pexpiretime) "Answers when a key expires, in milliseconds since 1970";
    "ping" "[message]" -1 Other User NO_KEY Args(connection::ping) "Answers PONG, or the message";
    "psetex" "key milliseconds value" 4 Write Operations ONE_KEY Args(strings::psetex) "Sets a key that expires";
    "pttl" "key" 2 Read Operations ONE_KEY Args(expiry::pttl) "Answers how long a key lives still, in milliseconds";
    "quit" "" -1 Other Nothing NO_KEY Session(|_, session, _| connection::quit(session)) "Closes the connection";
    "readonly" "[milliseconds]" -1 Other User NO_KEY Session(|args, session, _| connection::readonly(args, session)) "Has any member of a region answer reads, of tables that allow it";
    "readwrite" "" 1 Other User NO_KEY Session(|_, session, _| connection::readwrite(session)) "Has the primaries answer reads again";
    "reset" "" 1 Other Nothing NO_KEY Session(|_, session, context| connection::reset(session, context)) "Makes the connection as new";
    "scan" "cursor [MATCH pattern] [COUNT count] [TYPE type]" -2 Scan Operations NO_KEY Session(|args, session, context| scan::scan(args, session, context)) "Goes through the keys, in order";
    "select" "0 | 1 | table" 2 Other User NO_KEY Session(connection::select) "Selects a table by its name; 0 is the default one";
    "set" "key value [NX | XX | IFEQ value | IFNE value] [GET] [EX seconds | PX milliseconds | EXAT unix-seconds | PXAT unix-milliseconds | KEEPTTL]" -3 Write Operations ONE_KEY Args(strings::set) "Sets a key";
    "setex" "key seconds value" 4 Write Operations ONE_KEY Args(strings::setex) "Sets a key that expires";
    "setnx" "key value" 3 Write Operations ONE_KEY Args(strings::setnx) "Sets a key that does not exist";
    "strlen" "key" 2 Read Operations ONE_KEY Args(strings::strlen) "Answers the length of a value";
    "ttl" "key" 2 Read Operations ONE_KEY Args(expiry::ttl) "Answers how long a key lives still, in seconds";
    "type" "key" 2 Read Operations ONE_KEY Args(strings::type_of) "Answers string, or none";
    "unlink" "key [key ...]" -2 Write Operations KEYS Args(strings::del) "As DEL";
    "wait" "numreplicas timeout" 3 Other Table NO_KEY Args(strings::wait) "Answers the number of backups in sync, which hold every answered write";
}

/// Most arguments of a command that takes no list of keys, its name included: all of them are looked at in one step.
const MOST_ARGUMENTS: usize = 1024;

/// Every command, sorted by name.
pub fn all() -> &'static [Spec] {
    COMMANDS
}

/// Position in [`all`] of the command called `name`, in any case.
pub(super) fn position(name: &[u8]) -> Option<usize> {
    let mut lower = [0; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    COMMANDS.binary_search_by(|spec| spec.name.as_bytes().cmp(lower)).ok()
}

impl Spec {
    /// Whether its arguments are a list of keys, each of which becomes an operation.
    fn takes_many(&self) -> bool {
        self.keys.1 < 0
    }

    /// Checks the number of arguments and begins the command. `was_asking`: see [`Session::redirected`].
    pub(super) fn start(&self, args: &[Bytes], was_asking: bool, session: &mut Session, context: &mut Context) -> Work {
        if let Err(reply) = self.check_arity(args).and_then(|()| session.permits(self, args, context)) {
            return Work::Ready(reply);
        }
        let work = self.execute(args, session, context);
        let work = session.permit_operations(self, work, context).permitted();
        session.redirected(work, was_asking, context)
    }

    /// Checks the number of arguments.
    ///
    /// # Errors
    /// The reply, if there are too few or too many.
    pub(super) fn check_arity(&self, args: &[Bytes]) -> Result<(), Reply> {
        let given = args.len() as i64;
        let wanted = i64::from(self.arity);
        if given < wanted.abs() || (wanted > 0 && given > wanted) {
            return Err(Reply::err(format_args!("wrong number of arguments for '{}' command", self.name)));
        }
        if !self.takes_many() && args.len() > MOST_ARGUMENTS {
            return Err(Reply::err(format_args!("'{}' takes at most {MOST_ARGUMENTS} arguments", self.name)));
        }
        Ok(())
    }

    /// Makes the work of the command, without a check of rights.
    pub(super) fn execute(&self, args: &[Bytes], session: &mut Session, context: &mut Context) -> Work {
        match self.run {
            Run::Args(run) => run(args),
            Run::Context(run) => run(args, context),
            Run::Session(run) => run(args, session, context),
        }
    }

    /// The rights that some form of it needs, which `ACL CAT` shows it under.
    pub(super) fn categories(&self) -> Rights {
        match (self.needs, self.class) {
            (Needs::Operate | Needs::OfClient, _) => Rights::OPERATE,
            (Needs::OfAcl, _) => Rights::ADMIN.and(Rights::OPERATE),
            (Needs::OldToo, _) => Rights::READ.and(Rights::WRITE),
            (Needs::Operations, Class::Write) => Rights::WRITE,
            (Needs::Operations, _) => Rights::READ,
            (Needs::Nothing | Needs::User | Needs::Table, _) => Rights::NONE,
        }
    }

    /// Its name in errors: with its subcommand, if it has any.
    pub(super) fn full_name(&self, args: &[Bytes]) -> String {
        match (self.needs, args.get(1)) {
            (Needs::OfAcl | Needs::OfClient, Some(subcommand)) => {
                let shown = &subcommand[..subcommand.len().min(32)];
                format!("{}|{}", self.name, String::from_utf8_lossy(shown).to_ascii_lowercase())
            }
            _ => self.name.into(),
        }
    }
}

/// The reply to a command that is not in the table, worded as by Redis.
pub(super) fn unknown(args: &[Bytes]) -> Reply {
    const SHOWN_BYTES: usize = 128;
    let shown = |bytes: &[u8], most: usize| String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).into_owned();
    let mut text = format!("unknown command '{}', with args beginning with: ", shown(&args[0], SHOWN_BYTES));
    let start = text.len();
    for arg in &args[1..] {
        let used = text.len() - start;
        if used >= SHOWN_BYTES {
            break;
        }
        text += &format!("'{}' ", shown(arg, SHOWN_BYTES - used));
    }
    Reply::err(text)
}

/// The reply to an unknown subcommand, such as `CLIENT NOSUCH`.
pub(super) fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Work {
    let shown = String::from_utf8_lossy(&subcommand[..subcommand.len().min(128)]).into_owned();
    Work::Ready(Reply::err(format_args!(
        "unknown subcommand '{shown}' of {command}: see docs/resp.md for those there are"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_command_is_found_in_any_case() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for (index, spec) in COMMANDS.iter().enumerate() {
            assert_eq!(position(spec.name.to_uppercase().as_bytes()), Some(index));
        }
        assert_eq!(position(b""), None);
        assert_eq!(position(b"averyveryverylongcommandname"), None);
    }

    #[test]
    fn every_command_is_documented() {
        let page = include_str!("../../../../docs/resp.md");
        for spec in COMMANDS {
            assert!(page.contains(&format!("`{}", spec.name.to_uppercase())), "docs/resp.md lacks {}", spec.name);
        }
    }
}
