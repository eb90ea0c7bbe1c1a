//! `leeward user`: users, their passwords and rights. Passwords are hashed here, so no node sees a new one. None is ever
//! taken from the command line, which every user of the machine can read.

use crate::args::Connect;
use crate::text::table;
use crate::{Outcome, data, show};
use clap::{Args, Subcommand};
use leeward_client::{
    Client, Grant, Password, PasswordId, Presence, Rights, UserChange, UserName, UserRule, UserShown, read_password,
};
use leeward_cluster::embedded;
use leeward_format::user::{MAX_PASSWORD_BYTES, PasswordHash};
use leeward_security::passwords;
use std::io::Read;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// `leeward user`.
#[derive(Args, Debug)]
pub(crate) struct UserCommands {
    #[command(subcommand)]
    pub(crate) command: UserCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Show all users
    List(ListArgs),
    /// Show one user
    Show(ShowArgs),
    /// Make a user
    Add(AddArgs),
    /// Change what a user may do, and whether it may connect
    Set(SetArgs),
    /// Add, replace and remove passwords of a user
    Password(PasswordArgs),
    /// Remove users
    Remove(RemoveArgs),
    /// Give an admin a new password in the files of an embedded coordinator that does not run
    ResetAdmin(ResetAdminArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    connect: Connect,
    /// The user
    name: UserName,
}

/// Where a new password comes from.
#[derive(Args, Debug)]
#[group(multiple = false)]
struct NewPassword {
    /// Make a password of 256 random bits, and show it once
    #[arg(long)]
    generate: bool,
    /// Read the new password from this file, or with `-` from the standard input
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
}

const GRANTS: &str = "\
A grant is RIGHTS[@TABLE][:PREFIX]. Rights, with commas between them:
  read     reads and scans
  write    writes, and deletes of ranges
  admin    making, changing and dropping of tables; with all tables, also of users
  operate  status, metrics, moves, splits, checkpoints
  all      all of them
Without @TABLE it is of all tables, without :PREFIX of all keys. admin and operate do not look at keys.";

#[derive(Args, Debug)]
#[command(after_help = format!("{GRANTS}\n
Examples:
  leeward user add root --generate --grant all                   the first user: from then on everyone needs one
  leeward user add shop --generate --grant read,write@orders:eu/
  leeward user add monitor --new-password-file secret --grant operate"))]
pub(crate) struct AddArgs {
    #[command(flatten)]
    connect: Connect,
    /// Its name
    name: UserName,
    /// What it may do; may be repeated
    #[arg(long = "grant", value_name = "GRANT")]
    grants: Vec<Grant>,
    #[command(flatten)]
    password: NewPassword,
    /// It may not connect yet
    #[arg(long)]
    disabled: bool,
}

#[derive(Args, Debug)]
#[command(after_help = format!("{GRANTS}\n
Examples:
  leeward user set shop --grant read@orders:eu/          in place of all its grants
  leeward user set shop --add-grant read@prices
  leeward user set shop --disable                        its connections end at once"))]
pub(crate) struct SetArgs {
    #[command(flatten)]
    connect: Connect,
    /// The user
    name: UserName,
    /// What it may do, in place of all that it may; may be repeated
    #[arg(long = "grant", value_name = "GRANT")]
    grants: Vec<Grant>,
    /// What it may do besides; may be repeated
    #[arg(long = "add-grant", value_name = "GRANT", conflicts_with = "grants")]
    added: Vec<Grant>,
    /// It may do nothing
    #[arg(long, conflicts_with_all = ["grants", "added"])]
    no_grants: bool,
    /// It may connect
    #[arg(long)]
    enable: bool,
    /// It may not connect, and its connections end
    #[arg(long, conflicts_with = "enable")]
    disable: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A user may have eight passwords. To change one while it is in use: add another, give it to the clients, and remove the old one.
Connections that used a password that is removed end at once.

Examples:
  leeward user password shop --generate                  another one; the old ones stay
  leeward user password shop --generate --replace        in place of all others
  leeward user password shop --remove 9c6743a9096fa48c   `leeward user show` has the ids")]
pub(crate) struct PasswordArgs {
    #[command(flatten)]
    connect: Connect,
    /// The user
    name: UserName,
    #[command(flatten)]
    password: NewPassword,
    /// Remove all other passwords
    #[arg(long)]
    replace: bool,
    /// Remove the password with this id; may be repeated
    #[arg(long, value_name = "ID", conflicts_with = "replace")]
    remove: Vec<PasswordId>,
}

#[derive(Args, Debug)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    connect: Connect,
    /// The users
    #[arg(required_unless_present = "all")]
    names: Vec<UserName>,
    /// Remove all users: from then on everybody who reaches a node is let in
    #[arg(long, conflicts_with = "names")]
    all: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
For when no admin can come in any more. Stop the coordinator (`leeward dev`) first. The user is enabled, may do everything, and
has the new password and no other; it is made if there is none. Nodes follow when the coordinator runs again. With ZooKeeper see
docs/users.md.

Example:
  leeward user reset-admin root --coordinator leeward-data/coordinator --generate")]
pub(crate) struct ResetAdminArgs {
    /// The user
    name: UserName,
    /// Directory of the coordinator: that of `leeward dev` is in its data directory
    #[arg(long, value_name = "DIR")]
    coordinator: PathBuf,
    #[command(flatten)]
    password: NewPassword,
}

pub(crate) fn run(command: &UserCommand) -> Outcome {
    match command {
        UserCommand::List(args) => list(args),
        UserCommand::Show(args) => show_one(args),
        UserCommand::Add(args) => add(args),
        UserCommand::Set(args) => set(args),
        UserCommand::Password(args) => password(args),
        UserCommand::Remove(args) => remove(args),
        UserCommand::ResetAdmin(args) => reset_admin(args),
    }
}

fn list(args: &ListArgs) -> Outcome {
    let users = data::connect_to_new(&args.connect)?.users()?;
    if users.is_empty() {
        show("there are no users: every client that reaches a node may do everything\n")?;
        return Ok(true);
    }
    let rows = users.iter().map(|user| vec![user.name.to_string(), state(user), passwords_of(user), grants(user)]);
    show(&table(&["USER", "STATE", "PASSWORDS", "GRANTS"], rows.collect()))?;
    Ok(true)
}

fn state(user: &UserShown) -> String {
    match (user.is_readable(), user.is_enabled) {
        (false, _) => "unreadable",
        (true, true) => "enabled",
        (true, false) => "disabled",
    }
    .into()
}

fn passwords_of(user: &UserShown) -> String {
    if user.needs_password { user.passwords.len().to_string() } else { "not needed".into() }
}

/// Its grants, without those that give nothing.
fn grants(user: &UserShown) -> String {
    let some = user.grants.iter().filter(|grant| !grant.rights.is_empty()).map(ToString::to_string);
    let text = some.collect::<Vec<_>>().join(" ");
    if text.is_empty() { "none".into() } else { text }
}

fn show_one(args: &ShowArgs) -> Outcome {
    let users = data::connect_to_new(&args.connect)?.users()?;
    let Some(user) = users.iter().find(|user| user.name == args.name) else {
        eprintln!("there is no user {}", args.name);
        return Ok(false);
    };
    let mut text = format!("user {}, {}\n", user.name, state(user));
    if !user.is_readable() {
        text += "the coordinator's value of this user cannot be decoded, so it may not connect: remove it, and add it again\n";
    }
    if !user.needs_password {
        text += "any password will do\n";
    }
    for id in &user.passwords {
        text += &format!("password {id}\n");
    }
    for grant in user.grants.iter().filter(|grant| !grant.rights.is_empty()) {
        text += &format!("grant {grant}\n");
    }
    show(&text)?;
    Ok(true)
}

fn add(args: &AddArgs) -> Outcome {
    let client = data::connect_to_new(&args.connect)?;
    let new = args.password.read()?;
    let mut rules = vec![UserRule::Enable(!args.disabled)];
    rules.extend(new.iter().map(New::rule));
    rules.extend(args.grants.iter().cloned().map(UserRule::AddGrant));
    tell(new);
    change(&client, &args.name, Presence::New, rules)?;
    eprintln!("user {} is made", args.name);
    Ok(true)
}

fn set(args: &SetArgs) -> Outcome {
    let client = data::connect_to_new(&args.connect)?;
    let mut rules = Vec::new();
    if args.enable || args.disable {
        rules.push(UserRule::Enable(args.enable));
    }
    if !args.grants.is_empty() || args.no_grants {
        rules.extend([UserRule::ClearGrants, UserRule::RemoveRights(Rights::ALL), UserRule::ResetPrefixes]);
    }
    rules.extend(args.grants.iter().chain(&args.added).cloned().map(UserRule::AddGrant));
    if rules.is_empty() {
        return Err("nothing to change: give an option; `leeward user set --help` lists them".into());
    }
    change(&client, &args.name, Presence::Known, rules)?;
    println!("user {} is changed", args.name);
    Ok(true)
}

fn password(args: &PasswordArgs) -> Outcome {
    let client = data::connect_to_new(&args.connect)?;
    let new = args.password.read()?;
    let mut rules = Vec::new();
    if args.replace {
        if new.is_none() {
            return Err("--replace needs a new password: --generate or --new-password-file".into());
        }
        rules.push(UserRule::ResetPasswords);
    }
    if !args.remove.is_empty() {
        let users = client.users()?;
        let known = users.iter().find(|user| user.name == args.name).map_or(&[][..], |user| &user.passwords);
        if let Some(id) = args.remove.iter().find(|id| !known.contains(id)) {
            return Err(format!("user {} has no password {id}; `leeward user show` lists them", args.name).into());
        }
    }
    rules.extend(new.iter().map(New::rule));
    rules.extend(args.remove.iter().copied().map(UserRule::RemovePassword));
    if rules.is_empty() {
        return Err("nothing to change: --generate, --new-password-file FILE or --remove ID".into());
    }
    tell(new);
    change(&client, &args.name, Presence::Known, rules)?;
    eprintln!("the passwords of user {} are changed", args.name);
    Ok(true)
}

fn remove(args: &RemoveArgs) -> Outcome {
    let client = data::connect_to_new(&args.connect)?;
    let known = client.users()?;
    if let Some(name) = args.names.iter().find(|name| !known.iter().any(|user| user.name == **name)) {
        eprintln!("there is no user {name}");
        return Ok(false);
    }
    client.remove_users((!args.all).then(|| args.names.clone()))?;
    match args.all {
        true => println!("all users are removed: every client that reaches a node may do everything"),
        false => println!("removed: their connections end"),
    }
    Ok(true)
}

fn reset_admin(args: &ResetAdminArgs) -> Outcome {
    let new = args.password.read()?.ok_or("a new password is needed: --generate or --new-password-file FILE")?;
    embedded::reset_admin(&args.coordinator, &args.name, new.hash.clone())?;
    tell(Some(new));
    eprintln!("user {} is an admin with this password: start the coordinator again", args.name);
    Ok(true)
}

fn change(
    client: &Client,
    name: &UserName,
    presence: Presence,
    rules: Vec<UserRule>,
) -> Result<(), Box<dyn std::error::Error>> {
    Ok(client.change_user(UserChange { name: name.clone(), presence, rules })?)
}

/// A new password, and its hash.
struct New {
    password: Password,
    hash: PasswordHash,
    is_generated: bool,
}

impl New {
    fn rule(&self) -> UserRule {
        UserRule::AddPassword(self.hash.clone())
    }
}

impl NewPassword {
    fn read(&self) -> Result<Option<New>, Box<dyn std::error::Error>> {
        let password = match &self.new_password_file {
            Some(file) if file == Path::new("-") => from_stdin()?,
            Some(file) => read_password(file)?,
            None if self.generate => Password::generate(),
            None => return Ok(None),
        };
        if password.bytes().len() > MAX_PASSWORD_BYTES {
            return Err(format!("a password has at most {MAX_PASSWORD_BYTES} bytes").into());
        }
        let hash = PasswordHash::new(passwords::hash(&password));
        Ok(Some(New { password, hash, is_generated: self.generate }))
    }
}

fn from_stdin() -> Result<Password, Box<dyn std::error::Error>> {
    let mut text = Zeroizing::new(Vec::new());
    std::io::stdin().lock().take(MAX_PASSWORD_BYTES as u64 + 2).read_to_end(&mut text)?;
    let line = text.strip_suffix(b"\n").unwrap_or(&text);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err("the standard input has no password".into());
    }
    Ok(Password::new(line))
}

/// Shows a password that was made here, before the change: nothing can show it again, and the answer may be lost.
fn tell(new: Option<New>) {
    if let Some(New { password, hash, is_generated: true }) = new {
        eprintln!("password {}, shown this once:", hash.id());
        println!("{}", String::from_utf8_lossy(password.bytes()));
    }
}
