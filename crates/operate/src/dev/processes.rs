//! What can be done to the processes of a cluster: for tests and measurements of failures.

use std::io;

/// The processes of the nodes of a cluster, which may be killed, stopped and started again.
pub trait NodeProcesses: Send {
    /// Kills the node's process as `kill -9` does.
    ///
    /// # Errors
    /// It is not running, or may not be killed.
    fn kill(&mut self, server: u32) -> io::Result<()>;
    /// Starts the node's process again, on the same data. Does not wait until it serves.
    ///
    /// # Errors
    /// It cannot be started.
    fn restart(&mut self, server: u32) -> io::Result<()>;
    /// Stops the node's process as SIGSTOP does.
    ///
    /// # Errors
    /// It is not running, or may not be stopped.
    fn halt(&mut self, server: u32) -> io::Result<()>;
    /// Resumes a stopped process, as SIGCONT does.
    ///
    /// # Errors
    /// It is not running, or may not be resumed.
    fn resume(&mut self, server: u32) -> io::Result<()>;
    /// Removes the data of a node that does not run: it will start with an empty volume.
    ///
    /// # Errors
    /// Its data cannot be removed.
    fn wipe(&mut self, server: u32) -> io::Result<()>;
    /// Checks that all nodes that were not killed still run.
    ///
    /// # Errors
    /// One ended by itself; the message says which, and how.
    fn check(&mut self) -> io::Result<()>;
}
