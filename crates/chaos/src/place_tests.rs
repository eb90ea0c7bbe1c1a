//! Names that contain a process id, and the removal of what a run has made.

use super::*;

#[test]
fn names_tell_whose_they_are() {
    assert_eq!(pid_in("lwc123"), Some(123));
    assert_eq!(pid_in("lwc123-4"), Some(123));
    assert_eq!(pid_in("lwc123v4"), Some(123));
    assert_eq!([pid_in("lwcx"), pid_in("eth0"), pid_in("lwc")], [None; 3]);
}

#[test]
fn the_directory_goes_unless_it_is_kept_and_so_do_those_of_the_dead() {
    let parent = tempfile::tempdir().expect("a directory");
    // No process has the highest number.
    let dead = parent.path().join("lwc4194304");
    fs::create_dir(&dead).expect("a directory");
    let mut place = RunResources::new(parent.path()).expect("a directory");
    assert!(!dead.exists());
    let logs = place.directory().join("logs");
    fs::create_dir(&logs).expect("a directory");
    fs::write(logs.join("1"), "said").expect("a file");
    place.keep();
    let (directory, kept) = (place.directory().to_path_buf(), kept(&place));
    drop(place);
    assert!(!directory.exists());
    assert_eq!(fs::read_to_string(kept.join("logs/1")).expect("it is kept"), "said");
}
