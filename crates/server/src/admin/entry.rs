//! Who may read the admin port. Credentials come in the header `Authorization`: basic, or `Bearer USER.PASSWORD`. Each
//! request is checked by the users as they are then; the password thread remembers passwords that were right. A request
//! without a password must be for a name of the node ([`Hosts`]). Used on the admin thread.

use super::connection_limit::AdminSession;
use super::host::Hosts;
use crate::passwords::Passwords;
use crate::users::identity::PROTECTED;
use crate::users::{Answer, Question, Work};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use leeward_format::user::{DEFAULT_USER, Rights, UserName, Users};
use leeward_security::passwords::Credentials;
use std::net::{IpAddr, SocketAddr};
use tokio::sync::oneshot;

/// What the port knows of users.
#[derive(Clone)]
pub(crate) struct AdminEntry {
    pub(crate) passwords: Passwords,
    /// While there are no users, only clients of this machine are let in.
    pub(crate) is_protected: bool,
    pub(crate) hosts: Hosts,
}

/// The address of the client of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct From(IpAddr);

impl Connected<IncomingStream<'_, super::ConnectionLimit>> for From {
    fn connect_info(stream: IncomingStream<'_, super::ConnectionLimit>) -> From {
        let address: &SocketAddr = stream.remote_addr();
        let _: &AdminSession = stream.io();
        From(address.ip().to_canonical())
    }
}

impl AdminEntry {
    /// Whether anyone may know why the node is not ready: there are no users, and no page of the web asks.
    pub(super) fn is_open(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        self.passwords.users().is_empty() && self.hosts.check(uri, headers).is_ok()
    }
}

/// Lets a request in, or answers it.
pub(super) async fn check(
    State(entry): State<AdminEntry>,
    ConnectInfo(From(from)): ConnectInfo<From>,
    request: Request,
    next: Next,
) -> Response {
    match admit(&entry, from, request.uri(), request.headers()).await {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// Why a request is refused, as a sentence.
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused(status, why) = self;
        let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"leeward\", charset=\"UTF-8\"")];
        match status {
            StatusCode::UNAUTHORIZED => (status, challenge, why + "\n").into_response(),
            _ => (status, why + "\n").into_response(),
        }
    }
}

async fn admit(entry: &AdminEntry, from: IpAddr, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
    let users = entry.passwords.users();
    if users.is_empty() {
        // Before users are known, an operator of this machine must find out why.
        let refused = match users.is_known {
            true => Refused(StatusCode::FORBIDDEN, PROTECTED.into()),
            false => Refused(StatusCode::SERVICE_UNAVAILABLE, "the node does not know the users yet".into()),
        };
        let is_let_in = from.is_loopback() || !entry.is_protected && users.is_known;
        is_let_in.then_some(()).ok_or(refused)?;
        return entry.hosts.check(uri, headers).map_err(misdirected);
    }
    let name = match headers.get(header::AUTHORIZATION) {
        None if users.get(DEFAULT_USER).is_some_and(|user| user.admits(None)) => {
            entry.hosts.check(uri, headers).map_err(misdirected)?;
            UserName::default()
        }
        None => return Err(unauthorized("this cluster has users: give one, for instance: curl --user NAME")),
        Some(header) => {
            let Some(credentials) = Credentials::of_header(header.as_bytes()) else {
                return Err(unauthorized("expected basic authentication, or: Authorization: Bearer USER.PASSWORD"));
            };
            verify(entry, from, credentials).await?
        }
    };
    operates(&entry.passwords.users(), &name)
}

/// The user of these credentials.
async fn verify(entry: &AdminEntry, from: IpAddr, credentials: Credentials) -> Result<UserName, Refused> {
    let Credentials { user, password } = credentials;
    let (reply, answer) = oneshot::channel();
    let question = Question { connection: 0, from: Some(from), work: Work::Check { user, password } };
    // The receiver may have stopped waiting.
    entry.passwords.ask(question, Box::new(move |answer| drop(reply.send(answer))));
    match answer.await {
        Ok(Answer::Admitted(name, password)) => {
            let users = entry.passwords.users();
            let is_in = users.get(&name).is_some_and(|user| user.admits(password));
            is_in.then_some(name).ok_or_else(|| unauthorized("the user was changed meanwhile"))
        }
        Ok(answer) if let Some(why) = answer.unchecked() => Err(Refused(StatusCode::TOO_MANY_REQUESTS, why)),
        Ok(_) | Err(_) => Err(unauthorized("the user is unknown or disabled, or the password is wrong")),
    }
}

fn operates(users: &Users, name: &UserName) -> Result<(), Refused> {
    let may = users.get(name).is_some_and(|user| user.has_everywhere(Rights::OPERATE).is_ok());
    may.then_some(()).ok_or_else(|| {
        let why = format!("user {name} lacks the right to operate on all tables, which this page needs");
        Refused(StatusCode::FORBIDDEN, why)
    })
}

fn misdirected(host: String) -> Refused {
    let why = format!(
        "{host:?} is no name of this node. Without a password it answers only to an IP address, localhost, a name without a \
         dot, or its advertise_host, so that no page of the web reads it through your browser. Use one of these, set \
         advertise_host, or give a user's password"
    );
    Refused(StatusCode::MISDIRECTED_REQUEST, why)
}

fn unauthorized(hint: &str) -> Refused {
    Refused(StatusCode::UNAUTHORIZED, hint.into())
}
