//! Suggestions for misspelt words, and letters that are safe to show in a terminal.

#![forbid(unsafe_code)]

/// Returns the word of `known` that is most similar to `word`.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    known
        .min_by_key(|name| distance(word, name))
        .unwrap_or_default()
}

/// Returns the most similar word if it was probably meant: one word begins with the other, or no
/// more than a third of `word` is wrong.
pub fn near<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let found = nearest(word, known);
    let begins = found.starts_with(word) || word.starts_with(found);
    (begins || distance(word, found) <= word.len() / 3).then_some(found)
}

/// Returns a letter of a foreign text, or `?` for a control character or a mark that changes the
/// direction or the position of the text around it.
pub fn harmless(letter: char) -> char {
    let is_invisible = matches!(
        letter,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
    );
    match letter.is_control() || is_invisible {
        true => '?',
        false => letter,
    }
}

/// Returns the number of letters to insert, delete or replace to turn one word into the other
/// (Levenshtein, 1966).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (at, &candidate) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != candidate);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_needs_the_fewest_changes() {
        let known = ["rank", "step", "delay", "p"];
        for (word, due) in [("rnak", "rank"), ("steps", "step"), ("dleay", "delay")] {
            assert_eq!(nearest(word, known.into_iter()), due);
        }
    }
}
