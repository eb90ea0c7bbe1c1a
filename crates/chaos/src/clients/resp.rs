//! Redis commands as a [`Store`], over a connection to any server, which forwards commands for other servers' regions. When the
//! connection breaks, the client connects to the next server. Nothing is retried. Belongs to one thread.

use crate::clients::{DEADLINE, Outcome, Store};
use crate::cluster::Cluster;
use crate::cluster::certificates::channel;
use crate::workload::{number_of, value};
use bytes::Bytes;
use leeward_format::table::TableName;
use leeward_history::Action;
use leeward_security::passwords::Credentials;
use leeward_security::tls::{Channel, ClientTls};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a server may take to accept.
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
/// Longest string that is accepted as an answer. No value is as long.
const LONGEST_STRING: usize = 1 << 20;

/// A client by RESP.
#[derive(Debug)]
pub(crate) struct Resp {
    addresses: Vec<SocketAddr>,
    tls: Option<ClientTls>,
    user: Option<Credentials>,
    table: TableName,
    next: usize,
    connection: Option<BufReader<Channel<TcpStream>>>,
}

/// An answer of the kinds that the commands here can have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Text(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
}

impl Resp {
    /// A client of a table, which begins with the server of this number.
    pub(crate) fn new(cluster: &Cluster, table: TableName, first: usize) -> Resp {
        let (addresses, tls, user) = (cluster.resp_addresses(), cluster.tls(), cluster.credentials());
        Resp { addresses, tls, user, table, next: first, connection: None }
    }

    fn connect(&mut self) -> io::Result<()> {
        let address = self.addresses[self.next % self.addresses.len()];
        self.next += 1;
        let stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        let mut connection = BufReader::new(channel(self.tls.as_ref(), address, stream)?);
        let word = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let auth =
            self.user.as_ref().map(|of| vec![word(b"AUTH"), word(of.user.as_bytes()), word(of.password.bytes())]);
        let select = vec![word(b"SELECT"), word(self.table.as_bytes())];
        for command in auth.into_iter().chain([select]) {
            connection.get_mut().write_all(&encode(&command))?;
            match read_answer(&mut connection)? {
                Answer::Text(_) => {}
                // The server does not know the users or the table yet.
                other => return Err(io::Error::other(format!("{:?} was answered: {other:?}", command[0]))),
            }
        }
        self.connection = Some(connection);
        Ok(())
    }
}

impl Store for Resp {
    fn execute(&mut self, key: &Bytes, action: Action) -> Outcome {
        if self.connection.is_none() && self.connect().is_err() {
            return Outcome::NotDone;
        }
        let Some(connection) = self.connection.as_mut() else { return Outcome::NotDone };
        let request = encode(&command(key, action));
        let answer = connection.get_mut().write_all(&request).and_then(|()| read_answer(connection));
        match answer {
            Ok(answer) => outcome(action, answer),
            Err(_) => {
                self.connection = None;
                Outcome::Unknown
            }
        }
    }
}

fn command(key: &Bytes, action: Action) -> Vec<Bytes> {
    let word = |text: &'static str| Bytes::from_static(text.as_bytes());
    let set = |new: i64| vec![word("SET"), key.clone(), value(new)];
    match action {
        Action::Read(_) => vec![word("GET"), key.clone()],
        Action::Write(new) => set(new),
        Action::Swap(new, _) => [set(new), vec![word("GET")]].concat(),
        Action::WriteIfAbsent(new, _) => vec![word("SETNX"), key.clone(), value(new)],
        Action::WriteIfPresent(new, _) => [set(new), vec![word("XX")]].concat(),
        Action::WriteIfValue(new, old, _) => [set(new), vec![word("IFEQ"), value(old)]].concat(),
        Action::Take(_) => vec![word("GETDEL"), key.clone()],
        Action::Delete(_) => vec![word("DEL"), key.clone()],
        Action::Add(delta, _) => vec![word("INCRBY"), key.clone(), delta.to_string().into()],
    }
}

fn encode(words: &[Bytes]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn read_answer(from: &mut impl BufRead) -> io::Result<Answer> {
    let odd = |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("not an answer: {line:?}"));
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let text = line.trim_end();
    let rest = text.get(1..).ok_or_else(|| odd(text))?;
    let number = || rest.parse::<i64>().map_err(|_| odd(text));
    match text.as_bytes()[0] {
        b'+' => Ok(Answer::Text(rest.into())),
        b'-' => Ok(Answer::Error(rest.into())),
        b':' => Ok(Answer::Integer(number()?)),
        b'$' => {
            let Ok(length) = usize::try_from(number()?) else { return Ok(Answer::Bulk(None)) };
            if length > LONGEST_STRING {
                return Err(odd(text));
            }
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(Answer::Bulk(Some(bytes)))
        }
        _ => Err(odd(text)),
    }
}

/// The outcome that an answer states.
fn outcome(action: Action, answer: Answer) -> Outcome {
    let number = |found: Option<Vec<u8>>| found.as_deref().map(number_of);
    let answered = match (action, answer) {
        (_, Answer::Error(error)) => {
            let code = error.split(' ').next().unwrap_or_default();
            return match code {
                "UNKNOWN" => Outcome::Unknown,
                "LOADING" | "NOREPLICAS" | "UNAVAILABLE" | "TRYAGAIN" => Outcome::NotDone,
                _ => Outcome::Wrong(error),
            };
        }
        (Action::Read(_), Answer::Bulk(found)) => Action::Read(number(found)),
        (Action::Swap(new, _), Answer::Bulk(old)) => Action::Swap(new, Some(number(old))),
        (Action::Take(_), Answer::Bulk(old)) => Action::Take(Some(number(old))),
        (Action::Write(new), Answer::Text(_)) => Action::Write(new),
        (Action::WriteIfAbsent(new, _), Answer::Integer(done @ 0..=1)) => Action::WriteIfAbsent(new, Some(done == 1)),
        (Action::WriteIfPresent(new, _), Answer::Text(_)) => Action::WriteIfPresent(new, Some(true)),
        (Action::WriteIfPresent(new, _), Answer::Bulk(None)) => Action::WriteIfPresent(new, Some(false)),
        (Action::WriteIfValue(new, old, _), Answer::Text(_)) => Action::WriteIfValue(new, old, Some(true)),
        (Action::WriteIfValue(new, old, _), Answer::Bulk(None)) => Action::WriteIfValue(new, old, Some(false)),
        (Action::Delete(_), Answer::Integer(done @ 0..=1)) => Action::Delete(Some(done == 1)),
        (Action::Add(delta, _), Answer::Integer(sum)) => Action::Add(delta, Some(sum)),
        (_, other) => return Outcome::Wrong(format!("{other:?}")),
    };
    Outcome::Answered(answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_encoded_and_answers_decoded() {
        let key = Bytes::from_static(b"k");
        assert_eq!(encode(&command(&key, Action::Read(None))), b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        let read = |mut bytes: &[u8]| read_answer(&mut bytes);
        assert_eq!(read(b"+OK\r\n").expect("whole"), Answer::Text("OK".into()));
        assert_eq!(read(b"$2\r\nab\r\n").expect("whole"), Answer::Bulk(Some(b"ab".to_vec())));
        assert_eq!(read(b"$-1\r\n").expect("whole"), Answer::Bulk(None));
        assert_eq!(read(b":1\r\n").expect("whole"), Answer::Integer(1));
        for broken in [&b""[..], b"$9\r\nab\r\n", b"!x\r\n", b"$99999999999\r\n", b":x\r\n", b"\r\n"] {
            assert!(read(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn errors_say_whether_something_happened() {
        let error = |text: &str| outcome(Action::Write(1), Answer::Error(text.into()));
        assert_eq!(error("UNKNOWN the connection broke"), Outcome::Unknown);
        assert_eq!(error("LOADING region 1 is recovering"), Outcome::NotDone);
        assert!(matches!(error("ERR what"), Outcome::Wrong(_)));
        let refused = outcome(Action::WriteIfValue(2, 1, None), Answer::Bulk(None));
        assert_eq!(refused, Outcome::Answered(Action::WriteIfValue(2, 1, Some(false))));
    }
}
