//! The list of network interfaces that a user has chosen, and the variable that has it.
//!
//! If ringfold's own variable is not set, the variables of gloo and NCCL count: a job that has
//! them uses the same interfaces for ringfold. Their lists are translated into ringfold's grammar,
//! in which every translated entry has exactly the meaning that the other library gives it.

use std::fmt;

/// ringfold's own variable.
const OWN: &str = "RINGFOLD_SOCKET_IFNAME";

/// A translation of another library's list.
type Translation = fn(&str) -> String;

/// The variables that count, the first one that is set, and the translation of each.
const VARIABLES: [(&str, Translation); 3] = [
    (OWN, str::to_owned),
    ("GLOO_SOCKET_IFNAME", from_gloo),
    ("NCCL_SOCKET_IFNAME", from_nccl),
];

/// A choice of interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceChoice {
    /// The list, in the grammar of `RINGFOLD_SOCKET_IFNAME`.
    pub list: String,
    /// The variable that has the list.
    pub variable: &'static str,
    /// The variable's value.
    value: String,
}

impl InterfaceChoice {
    /// Returns the choice of a list in ringfold's own grammar.
    pub fn own(list: String) -> InterfaceChoice {
        InterfaceChoice {
            value: list.clone(),
            list,
            variable: OWN,
        }
    }

    /// Returns the choice in the first variable that `lookup` finds.
    pub fn find(lookup: &dyn Fn(&str) -> Option<String>) -> Option<InterfaceChoice> {
        let mut variables = VARIABLES.into_iter();
        variables.find_map(|(variable, translate)| {
            let value = lookup(variable)?;
            Some(InterfaceChoice {
                list: translate(&value),
                variable,
                value,
            })
        })
    }

    /// Returns the end of an error about the choice: the remedy if the variable is not ringfold's.
    pub fn remedy(&self) -> String {
        match self.variable {
            OWN => String::new(),
            _ => format!("; {OWN} takes precedence over it"),
        }
    }
}

impl fmt::Display for InterfaceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=`{}`", self.variable, self.value)
    }
}

/// Translates gloo's list, whose names are exact.
fn from_gloo(list: &str) -> String {
    joined(entries(list).map(|name| format!("={name}")))
}

/// Translates NCCL's list. Its names are the beginnings of names, or exact if `=` is in front of
/// the list; `^` in front excludes the list.
fn from_nccl(list: &str) -> String {
    let (not, names) = match list.trim_start().strip_prefix('^') {
        Some(rest) => ("^", rest),
        None => ("", list),
    };
    let (is_exact, names) = match names.trim_start().strip_prefix('=') {
        Some(rest) => (true, rest),
        None => (false, names),
    };
    joined(entries(names).map(|name| match is_exact {
        true => format!("{not}={name}"),
        false => format!("{not}{name}*"),
    }))
}

fn entries(list: &str) -> impl Iterator<Item = &str> {
    let names = list.split(',').map(str::trim);
    names.filter(|name| !name.is_empty())
}

fn joined(entries: impl Iterator<Item = String>) -> String {
    entries.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Option<InterfaceChoice> {
        InterfaceChoice::find(&|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn the_own_variable_comes_first_then_those_of_gloo_and_nccl() {
        let all = [
            ("NCCL_SOCKET_IFNAME", "eth2"),
            ("GLOO_SOCKET_IFNAME", "eth1"),
            (OWN, "eth0"),
        ];
        assert_eq!(found(&[]), None);
        for (count, due) in [(1, "eth2*"), (2, "=eth1"), (3, "eth0")] {
            let choice = found(&all[..count]).unwrap();
            assert_eq!(choice.list, due);
            let (variable, value) = all[count - 1];
            assert_eq!(choice.to_string(), format!("{variable}=`{value}`"));
        }
    }

    #[test]
    fn the_lists_of_others_are_translated() {
        for (nccl, due) in [
            ("eth,ib0", "eth*,ib0*"),
            ("=eth0,eth1", "=eth0,=eth1"),
            ("^docker, lo", "^docker*,^lo*"),
            ("^=docker0,lo", "^=docker0,^=lo"),
        ] {
            assert_eq!(from_nccl(nccl), due);
        }
        assert_eq!(from_gloo("eth0, eth1,"), "=eth0,=eth1");
    }

    #[test]
    fn only_a_foreign_variable_has_its_own_remedy() {
        let foreign = found(&[("GLOO_SOCKET_IFNAME", "eth1")]).unwrap();
        assert!(foreign.remedy().contains(OWN));
        assert_eq!(InterfaceChoice::own("eth1".into()).remedy(), "");
    }
}
