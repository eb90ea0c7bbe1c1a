//! `ACL`: users and their rights, in Redis' words. `docs/resp.md` has the differences.
//!
//! Rules outside of parentheses change the user's first grant, which is of all tables; each pair of parentheses adds a
//! grant, which may name a table.

use super::session::Session;
use super::table::{self, Needs, Spec};
use super::work::{Work, unexpected};
use super::{Context, error_reply};
use crate::resp::{Reply, parse_integer};
use crate::users::identity::table_in;
use crate::users::{Draft, Refusal};
use bytes::Bytes;
use leeward_format::op::{Op, OpResult};
use leeward_format::user::{
    CompiledUser, DEFAULT_USER, Denied, Grant, MAX_PASSWORD_BYTES, PasswordHash, PasswordId, Rights, User, UserName,
    UserRule,
};
use leeward_security::passwords::{Password, random_hex};
use std::sync::Arc;

/// Bits of a password that `ACL GENPASS` makes.
const GENERATED_BITS: i64 = 256;
const MOST_BITS: i64 = 4096;
/// Most passwords in one `ACL SETUSER`: hashing each takes some 20 ms, and finding one up to eight times as long.
const MOST_PASSWORDS: usize = 16;
/// Entries that `ACL LOG` shows.
const LOG_ENTRIES: usize = 10;
/// Units of the quota that one user takes.
const USER_UNITS: u32 = 20;

/// Subcommands that show or change users.
const ABOUT_USERS: [&[u8]; 6] = [b"users", b"list", b"getuser", b"dryrun", b"setuser", b"deluser"];

const HELP: [&str; 25] = [
    "ACL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CAT [<category>]",
    "    List all commands that belong to <category>, or all command categories",
    "    when no category is specified.",
    "DELUSER <username> [<username> ...]",
    "    Delete a list of users.",
    "DRYRUN <username> <command> [<arg> ...]",
    "    Returns whether the user can execute the given command without executing the command.",
    "GETUSER <username>",
    "    Get the user's details.",
    "GENPASS [<bits>]",
    "    Generate a secure 256-bit user password. The optional `bits` argument can",
    "    be used to specify a different size.",
    "LIST",
    "    Show users details in config file format.",
    "LOG [<count> | RESET]",
    "    Show the ACL log entries.",
    "SETUSER <username> <attribute> [<attribute> ...]",
    "    Create or modify a user with the specified attributes.",
    "USERS",
    "    List all the registered usernames.",
    "WHOAMI",
    "    Return the current connection username.",
    "HELP",
    "    Prints this help.",
];

/// `ACL` in the table of commands.
pub(super) fn spec() -> &'static Spec {
    table::all().iter().find(|spec| spec.name == "acl").expect("the table has it")
}

fn err(text: impl std::fmt::Display) -> Work {
    Work::Ready(Reply::err(text))
}

/// `ACL subcommand ...`
pub(super) fn acl(args: &[Bytes], session: &mut Session, context: &mut Context) -> Work {
    let subcommand = args[1].to_ascii_lowercase();
    if !context.users.is_known && ABOUT_USERS.contains(&&subcommand[..]) {
        // Whether there are any is not known.
        return Work::Ready(error_reply(&Refusal::Unknown.error()));
    }
    Work::Ready(match (&subcommand[..], &args[2..]) {
        (b"whoami", []) => Reply::text(session.identity.name()),
        (b"help", []) => Reply::Array(HELP.into_iter().map(Reply::Simple).collect()),
        (b"cat", []) => Reply::Array(Rights::ALL.each().map(|(_, name)| Reply::text(name)).collect()),
        (b"cat", [category]) => return cat(category),
        (b"genpass", []) => Reply::text(generate(GENERATED_BITS)),
        (b"genpass", [bits]) => match parse_integer(bits) {
            Some(bits @ 1..=MOST_BITS) => Reply::text(generate(bits)),
            Some(_) => Reply::err(
                "ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
            ),
            None => Reply::err("value is not an integer or out of range"),
        },
        (b"users", []) => names(context),
        (b"list", []) => Reply::Array(shown(context).iter().map(|user| Reply::text(line(user))).collect()),
        (b"getuser", [name]) => {
            let users = shown(context);
            let found = users.iter().find(|user| user.name.as_bytes() == &name[..]);
            found.map_or(Reply::Null, |user| describe(user))
        }
        (b"log", []) => context.shared.gate.log.reply(context.now, LOG_ENTRIES),
        (b"log", [what]) if what.eq_ignore_ascii_case(b"RESET") => {
            context.shared.gate.log.reset();
            Reply::OK
        }
        (b"log", [count]) => match parse_integer(count).and_then(|count| usize::try_from(count).ok()) {
            Some(count) => context.shared.gate.log.reply(context.now, count),
            None => Reply::err("value is not an integer or out of range"),
        },
        (b"dryrun", [name, command @ ..]) if !command.is_empty() => return dry_run(name, command, session, context),
        (b"setuser", [name, rules @ ..]) => return set_user(name, rules, session, context),
        (b"deluser", names) if !names.is_empty() => return delete(names, context),
        (
            b"whoami" | b"help" | b"cat" | b"genpass" | b"users" | b"list" | b"getuser" | b"log" | b"dryrun"
            | b"setuser" | b"deluser",
            _,
        ) => {
            let name = String::from_utf8_lossy(&subcommand).into_owned();
            Reply::err(format_args!("wrong number of arguments for 'acl|{name}' command"))
        }
        _ => {
            let shown = String::from_utf8_lossy(&args[1][..args[1].len().min(128)]).into_owned();
            Reply::err(format_args!("unknown subcommand '{shown}'. Try ACL HELP."))
        }
    })
}

fn generate(bits: i64) -> String {
    let digits = (bits as usize).div_ceil(4);
    let mut text = random_hex(digits.div_ceil(2));
    text.truncate(digits);
    text
}

/// The users, or the one that stands for anyone while there are none.
fn shown(context: &mut Context) -> Vec<Arc<CompiledUser>> {
    if context.users.is_empty() {
        return vec![Arc::new(User::anyone().into())];
    }
    let users: Vec<Arc<CompiledUser>> = context.users.iter().cloned().collect();
    context.quota.take(USER_UNITS * users.len() as u32);
    users
}

/// The names of all users, also of those that cannot be read.
fn names(context: &mut Context) -> Reply {
    if context.users.is_empty() {
        return Reply::Array(vec![Reply::text(DEFAULT_USER)]);
    }
    let names: Vec<Reply> = context.users.names().map(|name| Reply::text(&**name)).collect();
    context.quota.take(USER_UNITS * names.len() as u32);
    Reply::Array(names)
}

fn commands_of(rights: Rights) -> String {
    match rights {
        Rights::ALL => "+@all".into(),
        some => some.each().fold("-@all".into(), |text: String, (_, name)| text + " +@" + name),
    }
}

fn keys_of(grant: &Grant) -> String {
    let patterns = grant.prefixes.iter().map(|prefix| format!("~{}*", prefix.escape_ascii()));
    patterns.collect::<Vec<_>>().join(" ")
}

/// Text of a grant in parentheses.
fn selector(grant: &Grant) -> String {
    let table = grant.table.iter().map(|table| format!("table:{table}"));
    let parts = table.chain([keys_of(grant), commands_of(grant.rights)]);
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The user as `ACL LIST` shows it. Passwords are shown by their ids.
fn line(user: &User) -> String {
    let mut parts = vec![format!("user {} {}", user.name, if user.is_enabled { "on" } else { "off" })];
    if !user.needs_password {
        parts.push("nopass".into());
    }
    parts.extend(user.passwords.iter().map(|hash| format!("#{}", hash.id())));
    if let Some((first, others)) = user.grants.split_first() {
        parts.extend([keys_of(first), commands_of(first.rights)].into_iter().filter(|part| !part.is_empty()));
        parts.extend(others.iter().map(|grant| format!("({})", selector(grant))));
    }
    parts.join(" ")
}

fn describe(user: &User) -> Reply {
    let mut flags = vec![Reply::text(if user.is_enabled { "on" } else { "off" })];
    if !user.needs_password {
        flags.push(Reply::text("nopass"));
    }
    let passwords = user.passwords.iter().map(|hash| Reply::text(hash.id().to_string())).collect();
    let pair = |name: &str, value: Reply| (Reply::text(name), value);
    let of = |grant: &Grant| {
        vec![
            pair("commands", Reply::text(commands_of(grant.rights))),
            pair("keys", Reply::text(keys_of(grant))),
            pair("channels", Reply::text("")),
        ]
    };
    let (first, others) = user.grants.split_first().map_or((None, &[][..]), |(first, others)| (Some(first), others));
    let mut fields = vec![pair("flags", Reply::Set(flags)), pair("passwords", Reply::Array(passwords))];
    fields.extend(of(first.unwrap_or(&Grant::default())));
    let selectors = others.iter().map(|grant| {
        let table = grant.table.as_ref().map_or("", |table| table);
        let mut fields = of(grant);
        fields.push(pair("table", Reply::text(table)));
        Reply::Map(fields)
    });
    fields.push(pair("selectors", Reply::Array(selectors.collect())));
    Reply::Map(fields)
}

/// `ACL CAT category`
fn cat(category: &[u8]) -> Work {
    let name = String::from_utf8_lossy(category).to_ascii_lowercase();
    let Some(rights) = category_rights(&name).filter(|rights| *rights != Rights::ALL) else {
        return err(format_args!("Unknown category '{}'", name.chars().take(64).collect::<String>()));
    };
    let found = table::all().iter().filter(|spec| spec.categories().contains(rights));
    Work::Ready(Reply::Array(found.map(|spec| Reply::text(spec.name)).collect()))
}

fn category_rights(name: &str) -> Option<Rights> {
    match name {
        "all" => Some(Rights::ALL),
        _ => Rights::ALL.each().find(|(_, known)| *known == name).map(|(right, _)| right),
    }
}

/// `ACL DELUSER name ...`
fn delete(names: &[Bytes], context: &mut Context) -> Work {
    let names: Vec<&str> = names.iter().filter_map(|name| std::str::from_utf8(name).ok()).collect();
    if names.contains(&DEFAULT_USER) {
        return err("The 'default' user cannot be removed");
    }
    let found: Vec<UserName> = context.users.names().filter(|known| names.contains(&&***known)).cloned().collect();
    if found.is_empty() {
        return Work::Ready(Reply::Integer(0));
    }
    if let Err(reason) = context.users.check_removal(&found) {
        return err(reason);
    }
    let count = found.len() as i64;
    Work::many(vec![Op::RemoveUsers { names: Some(found) }], move |results| match results.first() {
        Some(OpResult::Done) => Reply::Integer(count),
        Some(other) => unexpected(other),
        None => Reply::Integer(0),
    })
}

/// The reply when a change of a user was recorded.
pub(super) fn done(result: OpResult) -> Reply {
    match result {
        OpResult::Done => Reply::OK,
        other => unexpected(&other),
    }
}

/// `ACL SETUSER name rule ...`
fn set_user(name: &[u8], rules: &[Bytes], session: &mut Session, context: &mut Context) -> Work {
    if name.contains(&b' ') || name.contains(&0) {
        return err("Usernames can't contain spaces or null characters");
    }
    let name = match String::from_utf8_lossy(name).parse::<UserName>() {
        Ok(name) => name,
        Err(reason) => return err(reason),
    };
    let mut drafts = Vec::new();
    // The user that everybody has until there is one: giving it a password takes no right from it, as in Redis.
    if context.users.is_empty() && *name == *DEFAULT_USER {
        let everything = [UserRule::Enable(true), UserRule::AddRights(Rights::ALL), UserRule::AddPrefix(Bytes::new())];
        drafts.extend(everything.map(Draft::Rule));
    }
    let known = context.users.get(&name).map_or(&[][..], |user| &user.passwords);
    match parse(rules, known) {
        Ok(parsed) => drafts.extend(parsed),
        Err(reason) => return err(reason),
    }
    match drafts.iter().map(Draft::plain).collect() {
        Some(rules) => session.change_user(name, rules, context),
        None => session.draft(name, drafts, context),
    }
}

/// The rules of `ACL SETUSER`, for a user that has the passwords `known`. A pair of parentheses may be one argument or
/// several.
fn parse(rules: &[Bytes], known: &[PasswordHash]) -> Result<Vec<Draft>, String> {
    let (mut drafts, mut passwords) = (Vec::new(), 0);
    let mut rules = rules.iter();
    while let Some(rule) = rules.next() {
        if let Some(inner) = rule.strip_prefix(b"(") {
            let mut text = inner.to_vec();
            while !text.ends_with(b")") {
                let Some(more) = rules.next() else {
                    return Err(format!("Unmatched parenthesis in acl selector starting at '{}'.", shown_rule(rule)));
                };
                text.push(b' ');
                text.extend_from_slice(more);
            }
            text.pop();
            drafts.push(Draft::Rule(UserRule::AddGrant(grant(&text)?)));
            continue;
        }
        let Some(draft) = draft(rule, known)? else { continue };
        passwords += usize::from(draft.plain().is_none());
        if passwords > MOST_PASSWORDS {
            return Err(format!("too many passwords in one command: at most {MOST_PASSWORDS}"));
        }
        drafts.push(draft);
    }
    Ok(drafts)
}

/// The grant in parentheses.
fn grant(text: &[u8]) -> Result<Grant, String> {
    let mut grant = Grant::default();
    for word in text.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
        let refused = |why: &str| format!("Error in ACL SETUSER modifier '{}': {why}", shown_rule(word));
        if let Some(table) = word.strip_prefix(b"table:") {
            let table = String::from_utf8_lossy(table).parse().map_err(|reason: String| refused(&reason))?;
            grant.table = Some(table);
            continue;
        }
        match draft(word, &[])? {
            None => {}
            Some(Draft::Rule(UserRule::AddRights(rights))) => grant.rights = grant.rights.and(rights),
            Some(Draft::Rule(UserRule::RemoveRights(rights))) => grant.rights = grant.rights.without(rights),
            Some(Draft::Rule(UserRule::AddPrefix(prefix))) => grant.prefixes.push(prefix),
            Some(Draft::Rule(UserRule::ResetPrefixes)) => grant.prefixes.clear(),
            Some(_) => return Err(refused("Syntax error")),
        }
    }
    Ok(grant)
}

/// A rule as errors show it: without a password, and not the whole of a long one.
fn shown_rule(rule: &[u8]) -> String {
    let end = rule.iter().position(|byte| b"><".contains(byte)).map_or(rule.len(), |mark| mark + 1).min(128);
    let dots = if end < rule.len() { "..." } else { "" };
    format!("{}{dots}", String::from_utf8_lossy(&rule[..end]))
}

/// One rule, for a user that has the passwords `known`; `None` for one that has no meaning here and does no harm.
fn draft(rule: &[u8], known: &[PasswordHash]) -> Result<Option<Draft>, String> {
    let refused = |why: &str| Err(format!("Error in ACL SETUSER modifier '{}': {why}", shown_rule(rule)));
    let lower = rule.to_ascii_lowercase();
    let one = |rule: UserRule| Ok(Some(Draft::Rule(rule)));
    match &lower[..] {
        b"on" => return one(UserRule::Enable(true)),
        b"off" => return one(UserRule::Enable(false)),
        b"nopass" => return one(UserRule::NoPassword),
        b"resetpass" => return one(UserRule::ResetPasswords),
        b"allkeys" => return one(UserRule::AddPrefix(Bytes::new())),
        b"resetkeys" => return one(UserRule::ResetPrefixes),
        b"allcommands" => return one(UserRule::AddRights(Rights::ALL)),
        b"nocommands" => return one(UserRule::RemoveRights(Rights::ALL)),
        b"clearselectors" => return one(UserRule::ClearGrants),
        b"reset" => return one(UserRule::Reset),
        // There is no pub/sub, and no payload to sanitize.
        b"allchannels" | b"resetchannels" | b"sanitize-payload" | b"skip-sanitize-payload" => return Ok(None),
        _ => {}
    }
    let Some((mark, rest)) = rule.split_first() else { return refused("Syntax error") };
    match mark {
        b'>' | b'<' if rest.is_empty() || rest.len() > MAX_PASSWORD_BYTES => {
            refused(&format!("a password has 1 to {MAX_PASSWORD_BYTES} bytes"))
        }
        b'>' => Ok(Some(Draft::Add(Password::new(rest)))),
        b'<' => Ok(Some(Draft::Remove(Password::new(rest)))),
        b'!' => match String::from_utf8_lossy(rest).parse::<PasswordId>() {
            Ok(id) => one(UserRule::RemovePassword(id)),
            Err(_) => refused("a password is removed by its id, 16 hexadecimal digits, as ACL LIST shows it"),
        },
        // As ACL LIST shows it: the user keeps a password that it has.
        b'#' => {
            let id = String::from_utf8_lossy(rest).parse::<PasswordId>();
            match known.iter().find(|hash| id == Ok(hash.id())) {
                Some(hash) => one(UserRule::AddPassword(hash.clone())),
                None if id.is_ok() => refused("the user has no password with this id: give >password"),
                None => {
                    refused("hashes of Redis (SHA-256) are not taken, since they are guessed too fast: give >password")
                }
            }
        }
        b'~' => match rest.strip_suffix(b"*") {
            Some(prefix) if !prefix.iter().any(|byte| b"*?[\\".contains(byte)) => {
                one(UserRule::AddPrefix(Bytes::copy_from_slice(prefix)))
            }
            _ => refused("keys are given by a prefix and *, such as ~user:*"),
        },
        b'%' => refused("rights by prefix are given in parentheses, such as (~user:* +@read)"),
        b'&' => Ok(None),
        b'+' | b'-' => {
            let Some(name) = rest.strip_prefix(b"@") else {
                return refused("rights are by category: @read, @write, @admin, @operate, @all");
            };
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            match (category_rights(&name), mark) {
                (Some(rights), b'+') => one(UserRule::AddRights(rights)),
                (Some(rights), _) => one(UserRule::RemoveRights(rights)),
                // What every user may do.
                (None, b'+') if name == "connection" => Ok(None),
                (None, _) => refused("Unknown command or category name in ACL"),
            }
        }
        _ => refused("Syntax error"),
    }
}

/// `ACL DRYRUN name command ...`
fn dry_run(name: &[u8], command: &[Bytes], session: &mut Session, context: &mut Context) -> Work {
    let users = shown(context);
    let Some(user) = users.iter().find(|user| user.name.as_bytes() == name) else {
        let shown: String = String::from_utf8_lossy(name).chars().take(64).collect();
        return err(format_args!("User '{shown}' not found"));
    };
    let Some(spec) = table::position(&command[0]).and_then(|at| table::all().get(at)) else {
        let shown: String = String::from_utf8_lossy(&command[0]).chars().take(64).collect();
        return err(format_args!("Command '{shown}' not found"));
    };
    if let Err(reply) = spec.check_arity(command) {
        return Work::Ready(reply);
    }
    let no_right = || {
        let text = format!("This user has no permissions to run the '{}' command", spec.full_name(command));
        Work::Ready(Reply::text(text))
    };
    if user.has_everywhere(spec.needs.everywhere(command)).is_err() {
        return no_right();
    }
    if !spec.needs.is_of_table() {
        return Work::Ready(Reply::OK);
    }
    let no_place =
        |key: &str| Work::Ready(Reply::text(format!("This user has no permissions to access the '{key}' key")));
    if spec.needs == Needs::Table && !user.knows(&session.terms.table) {
        return no_place(&session.terms.table);
    }
    // Commands on data only make their operations here, and do nothing else.
    let work = spec.execute(command, session, context);
    let (table, routes) = (&session.terms.table, context.routes);
    let checked = spec.check_operations(&work, |_, need| user.may(table, need, table_in(routes)));
    match checked {
        Ok(()) => match work {
            Work::Ready(error @ Reply::Error(_)) => Work::Ready(error),
            _ => Work::Ready(Reply::OK),
        },
        Err((Denied::Right, _)) => no_right(),
        Err((Denied::Place, key)) => no_place(&String::from_utf8_lossy(&key[..key.len().min(128)])),
    }
}
