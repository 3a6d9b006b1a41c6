//! Patterns over names of parameters and modules: `*` for any run of characters, `?` for one, `[ab]` or `[0-3]` for a choice.

/// True if the whole name fits the pattern.
pub fn fits(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    // The last star, and where in the name it began to match: on a dead end it takes one character more.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(next) = one(&pattern[p..], name[n]) {
            p += next;
            n += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            (p, n) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// True of a pattern with a choice that does not end.
pub fn is_open(pattern: &str) -> bool {
    pattern.rfind('[').is_some_and(|at| !pattern[at..].contains(']'))
}

/// How many characters of the pattern stand for `c`, if they do.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '[' => {
            let Some(end) = pattern.iter().position(|x| *x == ']') else { return (c == '[').then_some(1) };
            let choice = &pattern[1..end];
            let mut i = 0;
            while i < choice.len() {
                let range = choice.get(i + 1) == Some(&'-') && i + 2 < choice.len();
                let last = if range { choice[i + 2] } else { choice[i] };
                if (choice[i]..=last).contains(&c) {
                    return Some(end + 1);
                }
                i += if range { 3 } else { 1 };
            }
            None
        }
        x => (*x == c).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn stars_marks_and_choices() {
        assert!(fits("*", "") && fits("*", "a.b") && fits("a*b*c", "a-b-b-c") && fits("", ""));
        assert!(fits("*.q_proj.weight", "model.layers.0.self_attn.q_proj.weight"));
        assert!(!fits("*.q_proj.weight", "model.layers.0.self_attn.q_proj.bias"));
        assert!(fits("layers.[0-2]", "layers.1") && !fits("layers.[0-2]", "layers.3"));
        assert!(fits("layers.?", "layers.9") && !fits("layers.?", "layers.10"));
        assert!(fits("[ac-e]x", "dx") && !fits("[ac-e]x", "bx") && !fits("abc", "ab") && !fits("ab", "abc"));
    }
}
