//! Contents that the check of appended keys accepts, and contents that it refuses.

use super::*;

/// Three words: the first two are acknowledged in this order, the third may have been appended.
fn three() -> Appended {
    let mut appended = Appended::default();
    for number in 0..3 {
        assert_eq!(appended.write().1, number);
    }
    appended.acknowledged(1, 32).expect("the first word of its key");
    appended.acknowledged(0, 64).expect("the second word of its key");
    appended
}

fn judge(appended: &Appended, words: &[usize]) -> Result<(), String> {
    let found: String = words.iter().map(|number| word(*number)).collect();
    let (_, number, must) = appended.read(&mut Rng::new(1)).expect("there is one");
    appended.check(number, must, Some(&found.into()))
}

#[test]
fn every_word_is_there_once_and_where_it_was_said_to_be() {
    let mut appended = three();
    assert_eq!(judge(&appended, &[1, 0]), Ok(()));
    assert_eq!(judge(&appended, &[1, 0, 2]), Ok(()));
    assert!(judge(&appended, &[1, 0, 2, 2]).is_err(), "a word is there twice");
    assert!(judge(&appended, &[1, 0, 1]).is_err(), "a word is there twice");
    assert!(judge(&appended, &[1]).is_err(), "a word is gone");
    assert!(judge(&appended, &[0, 1]).is_err(), "the answers were others");
    assert!(judge(&appended, &[1, 0, 7]).is_err(), "no client appended that word");
    appended.not_done(2);
    assert!(judge(&appended, &[1, 0, 2]).is_err(), "it was not to be there");
    assert!(appended.acknowledged(2, 70).is_err(), "no word ends there");
}

#[test]
fn a_loss_of_power_takes_words_and_doubles_none() {
    let mut appended = three();
    appended.power_lost();
    assert_eq!(judge(&appended, &[]), Ok(()));
    assert_eq!(judge(&appended, &[2, 1]), Ok(()));
    assert!(judge(&appended, &[1, 1]).is_err());
}

#[test]
fn what_is_left_is_taken_out_of_the_content() {
    let mut appended = three();
    (3..=WORDS).for_each(|_| drop(appended.write()));
    let value = [word(1), word(0)].concat();
    let mut content = BTreeMap::from([(key(0), value.into()), (key(1), word(WORDS).into())]);
    assert_eq!(appended.check_content(&mut content), Ok(()));
    assert!(content.is_empty());
    assert!(appended.check_content(&mut content).is_err(), "acknowledged words are gone");
}
