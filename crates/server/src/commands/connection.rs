//! Commands about the connection itself.

use super::session::{Session, Terms};
use super::work::Work;
use super::{Context, table};
use crate::protocol_session::ProtocolSession;
use crate::resp::{Protocol, Reply, parse_integer};
use bytes::Bytes;
use leeward_format::table::{TableName, unknown_table};
use leeward_format::user::DEFAULT_USER;

fn error(text: impl std::fmt::Display) -> Work {
    Work::Ready(Reply::err(text))
}

/// `PING [message]`
pub(super) fn ping(args: &[Bytes]) -> Work {
    match args {
        [_] => Work::Ready(Reply::Simple("PONG")),
        [_, message] => Work::Ready(Reply::Bulk(message.clone())),
        _ => error("wrong number of arguments for 'ping' command"),
    }
}

/// `ECHO message`
pub(super) fn echo(args: &[Bytes]) -> Work {
    Work::Ready(Reply::Bulk(args[1].clone()))
}

/// `QUIT`
pub(super) fn quit(session: &mut Session) -> Work {
    session.stop();
    Work::Ready(Reply::OK)
}

/// `RESET`
pub(super) fn reset(session: &mut Session, context: &mut Context) -> Work {
    session.terms = Terms::default();
    session.refused_multi = None;
    session.identity.forget();
    session.follow_users(context);
    session.select(context.shared.facts.redis_table.clone(), context);
    if let Some(client) = context.shared.clients.get_mut(session.id()) {
        client.name.clear();
    }
    Work::Ready(Reply::Simple("RESET"))
}

/// `AUTH [username] password`
pub(super) fn auth(args: &[Bytes], session: &mut Session, context: &mut Context) -> Work {
    let (user, password) = match args {
        [_, password] => {
            let default = context.users.get(DEFAULT_USER);
            if context.users.is_known && (context.users.is_empty() || default.is_some_and(|user| !user.needs_password))
            {
                return error(
                    "AUTH <password> called without any password configured for the default user. Are you sure your \
                     configuration is correct?",
                );
            }
            (DEFAULT_USER.as_bytes(), password)
        }
        [_, user, password] => (&user[..], password),
        _ => return error("syntax error"),
    };
    session.authenticate(user, password, None, context)
}

/// `SELECT 0 | 1 | table`. Commands on a table that has a name here, and on database 1, are never redirected. Database 1
/// is database 0 for clients that can only name a number. It is there only where forwarding makes a difference: elsewhere
/// it would be a second name for the same keys.
pub(super) fn select(args: &[Bytes], session: &mut Session, context: &mut Context) -> Work {
    let first = &context.shared.facts.redis_table;
    let number = parse_integer(&args[1]);
    let table = match number {
        Some(0) => first.clone(),
        Some(1) if session.has_slots(first, context.routes) => first.clone(),
        Some(1) if !context.knows_tables() => return Work::Ready(no_tables()),
        Some(_) => return error("DB index is out of range"),
        None => match String::from_utf8_lossy(&args[1]).parse::<TableName>() {
            // Whether or not there is such a table.
            Ok(table) if !session.identity.knows(&table) => return Work::Ready(session.no_place(&table, context)),
            Ok(table) if context.routes.table(&table).is_some() => table,
            Ok(_) if !context.knows_tables() => return Work::Ready(no_tables()),
            Ok(table) => return error(unknown_table(&table)),
            Err(reason) => return error(reason),
        },
    };
    session.select(table, context);
    session.terms.forwards = number != Some(0);
    Work::Ready(Reply::OK)
}

fn no_tables() -> Reply {
    Reply::Error("LOADING the cluster has no tables yet; try again".into())
}

/// `READONLY [milliseconds]`
pub(super) fn readonly(args: &[Bytes], session: &mut Session) -> Work {
    let bound = match args {
        [_] => Some(u32::MAX),
        [_, bound] => parse_integer(bound).and_then(|bound| u32::try_from(bound).ok()),
        _ => return error("syntax error"),
    };
    match bound {
        Some(bound) => {
            session.terms.at_most_ms = Some(bound);
            Work::Ready(Reply::OK)
        }
        None => error("value is not an integer or out of range"),
    }
}

/// `READWRITE`
pub(super) fn readwrite(session: &mut Session) -> Work {
    session.terms.at_most_ms = None;
    Work::Ready(Reply::OK)
}

/// `HELLO [version [AUTH username password] [SETNAME name]]`
pub(super) fn hello(args: &[Bytes], session: &mut Session, context: &mut Context) -> Work {
    let mut protocol = session.terms.protocol;
    if let Some(version) = args.get(1) {
        protocol = match parse_integer(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Work::Ready(Reply::Error("NOPROTO unsupported protocol version".into())),
            None => return error("Protocol version is not an integer or out of range"),
        };
    }
    let (mut name, mut user) = (None, None);
    let mut options = args.get(2..).unwrap_or_default();
    while let Some((option, rest)) = options.split_first() {
        if option.eq_ignore_ascii_case(b"AUTH") && rest.len() >= 2 {
            user = Some((&rest[0], &rest[1]));
            options = &rest[2..];
        } else if option.eq_ignore_ascii_case(b"SETNAME") && !rest.is_empty() {
            match checked_name(&rest[0]) {
                Some(checked) => name = Some(checked),
                None => return bad_name("Client names"),
            }
            options = &rest[1..];
        } else {
            return error(format_args!("Syntax error in HELLO option '{}'", option.escape_ascii()));
        }
    }
    match user {
        Some((user, password)) => session.authenticate(user, password, Some((protocol, name)), context),
        None if session.identity.admitted().is_err() => Work::Ready(Reply::Error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> \
             option can be used to authenticate the client and select the RESP protocol version at the same time"
                .into(),
        )),
        None => Work::Ready(greet(session, protocol, name, context)),
    }
}

/// Chooses a version of the protocol, and a name, and answers `HELLO`.
pub(super) fn greet(session: &mut Session, protocol: Protocol, name: Option<String>, context: &mut Context) -> Reply {
    session.terms.protocol = protocol;
    if let Some(client) = context.shared.clients.get_mut(session.id()) {
        client.protocol = Some(protocol);
        if let Some(name) = name {
            client.name = name;
        }
    }
    let pair = |key: &str, value: Reply| (Reply::text(key), value);
    Reply::Map(vec![
        pair("server", Reply::text("leeward")),
        pair("version", Reply::text(env!("CARGO_PKG_VERSION"))),
        pair("proto", Reply::Integer(if protocol == Protocol::Resp3 { 3 } else { 2 })),
        pair("id", Reply::Integer(session.id() as i64)),
        pair("mode", Reply::text(session.mode(context.routes))),
        pair("role", Reply::text("master")),
        pair("modules", Reply::Array(Vec::new())),
    ])
}

/// `CLIENT ...`
pub(super) fn client(args: &[Bytes], session: &mut Session, context: &mut Context) -> Work {
    let id = session.id();
    let clients = &mut context.shared.clients;
    let subcommand = args[1].to_ascii_lowercase();
    match (&subcommand[..], &args[2..]) {
        (b"id", []) => Work::Ready(Reply::Integer(id as i64)),
        (b"getname", []) => {
            let name = clients.get(id).map(|client| client.name.clone()).filter(|name| !name.is_empty());
            Work::Ready(name.map_or(Reply::Null, Reply::text))
        }
        (b"setname", [name]) => match checked_name(name) {
            Some(name) => {
                clients.get_mut(id).into_iter().for_each(|client| client.name.clone_from(&name));
                Work::Ready(Reply::OK)
            }
            None => bad_name("Client names"),
        },
        (b"setinfo", [attribute, text]) => set_info(attribute, text, id, context),
        (b"info", []) => Work::Ready(Reply::Verbatim(clients.line(id, context.now) + "\n")),
        (b"list", options) => list(options, context),
        (b"reply", [mode]) if mode.eq_ignore_ascii_case(b"ON") => Work::Ready(Reply::OK),
        (b"reply", [mode]) if [&b"OFF"[..], b"SKIP"].iter().any(|off| mode.eq_ignore_ascii_case(off)) => {
            // The client takes the next reply for that to a later command: it must get none.
            session.stop();
            error("CLIENT REPLY OFF and SKIP are not supported: the connection is closed")
        }
        (b"id" | b"getname" | b"setname" | b"setinfo" | b"info", _) => {
            let name = String::from_utf8_lossy(&subcommand).into_owned();
            error(format_args!("wrong number of arguments for 'client|{name}' command"))
        }
        _ => table::unknown_subcommand("CLIENT", &args[1]),
    }
}

fn set_info(attribute: &[u8], text: &[u8], id: u64, context: &mut Context) -> Work {
    let attribute = attribute.to_ascii_lowercase();
    let what = match &attribute[..] {
        b"lib-name" => "lib-name",
        b"lib-ver" => "lib-ver",
        other => return error(format_args!("Unrecognized option '{}'", other.escape_ascii())),
    };
    let Some(text) = checked_name(text) else { return bad_name(what) };
    if let Some(client) = context.shared.clients.get_mut(id) {
        *(if what == "lib-name" { &mut client.library } else { &mut client.library_version }) = text;
    }
    Work::Ready(Reply::OK)
}

/// `CLIENT LIST [TYPE normal] [ID id ...]`
fn list(options: &[Bytes], context: &mut Context) -> Work {
    let clients = &context.shared.clients;
    let wanted: Vec<u64> = match options {
        [] => clients.ids().collect(),
        [option, kind] if option.eq_ignore_ascii_case(b"TYPE") => {
            if kind.eq_ignore_ascii_case(b"normal") {
                clients.ids().collect()
            } else if [&b"master"[..], b"replica", b"slave", b"pubsub"].iter().any(|k| kind.eq_ignore_ascii_case(k)) {
                Vec::new()
            } else {
                return error(format_args!("Unknown client type '{}'", kind.escape_ascii()));
            }
        }
        [option, ids @ ..] if option.eq_ignore_ascii_case(b"ID") && !ids.is_empty() => {
            let ids: Option<Vec<u64>> =
                ids.iter().map(|id| parse_integer(id).and_then(|id| u64::try_from(id).ok())).collect();
            match ids {
                Some(ids) => ids.into_iter().filter(|id| clients.get(*id).is_some()).collect(),
                None => return error("Invalid client ID"),
            }
        }
        _ => return error("syntax error"),
    };
    context.quota.take(CLIENT_UNITS * wanted.len() as u32);
    let lines = wanted.into_iter().map(|id| clients.line(id, context.now) + "\n").collect();
    Work::Ready(Reply::Verbatim(lines))
}

/// Units of the quota that one line of `CLIENT LIST` takes.
const CLIENT_UNITS: u32 = 10;

/// A name that `CLIENT LIST` can show: printable ASCII without spaces (as in Redis), at most 256 bytes.
fn checked_name(name: &[u8]) -> Option<String> {
    let fits = name.len() <= 256 && name.iter().all(u8::is_ascii_graphic);
    fits.then(|| String::from_utf8_lossy(name).into_owned())
}

fn bad_name(what: &str) -> Work {
    error(format_args!("{what} cannot contain spaces, newlines or special characters, nor be over 256 bytes long."))
}
