//! Reading a text.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    Binary, Class, Compare, Compute, Instruction, Kernel, Module, Operand, Special, Type, What,
};
use crate::report::end;

/// Directives that say for what the text is made.
const HEADERS: [&str; 3] = [".version", ".target", ".address_size"];

/// The kernels of `text`; ends the process with the first statement that is not known here.
pub fn module(text: &str) -> Module {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    let text: Vec<&str> = lines
        .filter(|line| {
            !HEADERS
                .iter()
                .any(|header| line.trim_start().starts_with(header))
        })
        .collect();
    let text = text.join("\n");
    let mut module = Module::default();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let Some((head, after)) = rest.split_once('{') else {
            unknown(rest);
        };
        // Braces within a body are those of vectors; the one that ends it stands alone.
        let (body, after) = after.split_once("\n}").unwrap_or_else(|| unknown(head));
        let (name, kernel) = kernel(head, body);
        module.kernels.insert(name, Arc::new(kernel));
        rest = after.trim();
    }
    module
}

fn unknown(what: &str) -> ! {
    end(format!(
        "a kernel has `{}`, which is not known here",
        what.trim()
    ))
}

/// The names of a kernel, while it is read.
#[derive(Default)]
struct Names {
    /// The offset and the bytes of each parameter.
    parameters: BTreeMap<String, (usize, usize)>,
    registers: BTreeMap<String, usize>,
    labels: BTreeMap<String, usize>,
}

fn kernel(head: &str, body: &str) -> (String, Kernel) {
    let inside = head.trim().strip_prefix(".visible .entry ");
    let inside = inside.and_then(|inside| inside.trim_end().strip_suffix(')'));
    let (name, list) = inside
        .and_then(|inside| inside.split_once('('))
        .unwrap_or_else(|| unknown(head));
    let mut names = Names::default();
    let (mut parameters, mut offset) = (vec![], 0usize);
    for parameter in list.split(',') {
        let words: Vec<&str> = parameter.split_whitespace().collect();
        let [".param", kind, name] = words[..] else {
            unknown(parameter);
        };
        let bytes = (kind_of(kind.trim_start_matches('.')).bits / 8) as usize;
        offset = offset.next_multiple_of(bytes);
        names.parameters.insert(name.into(), (offset, bytes));
        parameters.push(bytes);
        offset += bytes;
    }
    let statements = statements(body, &mut names);
    let read = |statement: &String| instruction(statement, &names);
    let instructions = statements.iter().map(read).collect();
    let kernel = Kernel {
        parameters,
        registers: names.registers.len(),
        instructions,
    };
    (name.trim().into(), kernel)
}

/// The instructions of a body, whose labels and registers become known.
fn statements(body: &str, names: &mut Names) -> Vec<String> {
    let mut statements = vec![];
    for statement in body.split(';') {
        let mut statement = statement.trim();
        while let Some((label, after)) = statement.split_once(':') {
            names.labels.insert(label.trim().into(), statements.len());
            statement = after.trim();
        }
        match statement.strip_prefix(".reg ") {
            Some(declared) => declare(declared, names),
            None if statement.is_empty() => {}
            None => statements.push(statement.into()),
        }
    }
    statements
}

/// `.b32 %a, %b<4>`: one register, and four that are numbered.
fn declare(declared: &str, names: &mut Names) {
    let (kind, list) = declared
        .split_once(' ')
        .unwrap_or_else(|| unknown(declared));
    kind_of(kind.trim_start_matches('.'));
    let mut add = |name: String| {
        let number = names.registers.len();
        names.registers.insert(name, number);
    };
    for name in list.split(',').map(str::trim) {
        match name.strip_suffix('>').and_then(|name| name.split_once('<')) {
            None => add(name.into()),
            Some((name, count)) => {
                let count: usize = count.parse().unwrap_or_else(|_| unknown(declared));
                (0..count).for_each(|number| add(format!("{name}{number}")));
            }
        }
    }
}

fn kind_of(text: &str) -> Type {
    let class = match text.get(..1) {
        Some("b") => Class::Bits,
        Some("u") => Class::Unsigned,
        Some("s") => Class::Signed,
        Some("f") => Class::Float,
        Some("p") if text == "pred" => {
            let class = Class::Predicate;
            return Type { class, bits: 1 };
        }
        _ => unknown(text),
    };
    let bits = text[1..].parse().ok();
    let bits = bits.filter(|bits| [8, 16, 32, 64].contains(bits));
    let bits = bits.unwrap_or_else(|| unknown(text));
    Type { class, bits }
}

fn instruction(statement: &str, names: &Names) -> Instruction {
    let (guard, rest) = match statement.strip_prefix('@') {
        None => (None, statement),
        Some(guarded) => {
            let parts = guarded.split_once(' ');
            let (name, rest) = parts.unwrap_or_else(|| unknown(statement));
            let is_negated = name.starts_with('!');
            let register = names.registers.get(name.trim_start_matches('!'));
            let register = *register.unwrap_or_else(|| unknown(statement));
            (Some((register, is_negated)), rest)
        }
    };
    let (code, operands) = rest.trim().split_once(' ').unwrap_or((rest, ""));
    let words: Vec<&str> = code.split('.').collect();
    let read = Read {
        statement,
        names,
        operands: split(operands),
    };
    let what = read.what(&words).unwrap_or_else(|| unknown(statement));
    Instruction { guard, what }
}

/// Operands, of which a vector is one.
fn split(operands: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = operands.split(|each| {
        depth += i32::from(each == '{') - i32::from(each == '}');
        each == ',' && depth == 0
    });
    parts
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

/// A statement that is read.
struct Read<'a> {
    statement: &'a str,
    names: &'a Names,
    operands: Vec<&'a str>,
}

impl Read<'_> {
    /// What the instruction of these words does; nothing if it is not known.
    fn what(&self, words: &[&str]) -> Option<What> {
        let kind = || words.last().map(|word| kind_of(word));
        Some(match words {
            ["ret"] => What::Return,
            ["bra"] => What::Branch(*self.names.labels.get(*self.operands.first()?)?),
            ["fence", "acq_rel" | "sc", "sys"] | ["membar", "sys"] => What::Fence,
            ["bar", "sync"] if self.operands == ["0"] => What::Barrier(None),
            ["bar", "red", "or", "pred"] if self.operands.get(1) == Some(&"0") => {
                let any = self.register(self.operands.get(2)?)?;
                What::Barrier(Some([self.target()?, any]))
            }
            ["ld", "param", _] => {
                let name = self.operands.get(1)?;
                let name = name.strip_prefix('[')?.strip_suffix(']')?;
                let (offset, bytes) = *self.names.parameters.get(name)?;
                let into = self.target()?;
                let is_whole = bytes * 8 == kind()?.bits as usize;
                is_whole.then_some(What::LoadParameter {
                    into,
                    offset,
                    bytes,
                })?
            }
            ["ld", middle @ .., _] => self.load(middle, kind()?)?,
            ["st", middle @ .., _] => self.store(middle, kind()?)?,
            _ => What::Compute {
                into: self.target()?,
                what: match self.binary(words) {
                    Some(binary) => binary,
                    None => self.compute(words)?,
                },
            },
        })
    }

    /// What sets a register otherwise than by two operands of one type.
    fn compute(&self, words: &[&str]) -> Option<Compute> {
        let kind = kind_of(words.last()?);
        Some(match words {
            ["mov", _] | ["cvta", "to", "global", _] => Compute::Move {
                from: self.operand(1)?,
                bits: kind.bits,
            },
            ["mul", "wide", _] => Compute::Product {
                kind,
                operands: self.sources()?,
            },
            ["bfe", "u32" | "s32"] => Compute::Extract {
                kind,
                operands: self.sources()?,
            },
            ["bfi", "b32"] => Compute::Insert {
                operands: self.sources()?,
            },
            ["setp", how, _] => Compute::Compare {
                how: compare(how)?,
                kind,
                operands: self.sources()?,
            },
            ["selp", _] => Compute::Select {
                bits: kind.bits,
                operands: [self.operand(1)?, self.operand(2)?],
                by: self.register(self.operands.get(3)?)?,
            },
            ["cvt", middle @ .., to, _] => {
                let to = kind_of(to);
                // A number of fewer bits must be rounded somehow.
                let is_rounded = to.class == Class::Float && to.bits < kind.bits;
                let expected: &[&str] = if is_rounded { &["rn"] } else { &[] };
                let operand = self.operand(1)?;
                (middle == expected).then_some(Compute::Convert {
                    to,
                    from: kind,
                    operand,
                })?
            }
            _ => return None,
        })
    }

    /// An instruction with two operands of one type.
    fn binary(&self, words: &[&str]) -> Option<Compute> {
        let (name, kind) = (words.first()?, words.last()?);
        let what = match *name {
            "add" => Binary::Add,
            "sub" => Binary::Subtract,
            "mul" => Binary::Multiply,
            "div" => Binary::Divide,
            "min" => Binary::Min,
            "max" => Binary::Max,
            "and" => Binary::And,
            "or" => Binary::Or,
            "xor" => Binary::Xor,
            "shl" => Binary::ShiftLeft,
            "shr" => Binary::ShiftRight,
            _ => return None,
        };
        let kind = kind_of(kind);
        let middle = &words[1..words.len() - 1];
        let expected: &[&str] = match (kind.class, what) {
            (Class::Float, _) => &["rn"],
            (_, Binary::Multiply) => &["lo"],
            _ => &[],
        };
        (middle == expected).then_some(Compute::Binary {
            what,
            kind,
            operands: self.sources()?,
        })
    }

    fn load(&self, middle: &[&str], kind: Type) -> Option<What> {
        let (vector, is_atomic) = access(middle, &["relaxed", "acquire"])?;
        let (base, offset) = self.address(self.operands.get(1)?)?;
        let into = self.vector(self.operands.first()?, vector);
        let into = into.iter().map(|name| self.register(name));
        Some(What::Load {
            into: into.collect::<Option<_>>()?,
            base,
            offset,
            bytes: (kind.bits / 8) as usize,
            is_atomic,
        })
    }

    fn store(&self, middle: &[&str], kind: Type) -> Option<What> {
        let (vector, is_atomic) = access(middle, &["relaxed", "release"])?;
        let (base, offset) = self.address(self.operands.first()?)?;
        let from = self.vector(self.operands.get(1)?, vector);
        let from = from.iter().map(|name| self.value(name));
        Some(What::Store {
            from: from.collect::<Option<_>>()?,
            base,
            offset,
            bytes: (kind.bits / 8) as usize,
            is_atomic,
        })
    }

    /// The elements of an operand that is a vector of `count`.
    fn vector<'b>(&self, operand: &'b str, count: usize) -> Vec<&'b str> {
        let inside = operand
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let elements: Vec<&str> = match inside {
            Some(inside) => inside.split(',').map(str::trim).collect(),
            None => vec![operand],
        };
        match elements.len() == count {
            true => elements,
            false => unknown(self.statement),
        }
    }

    /// `[%register]` or `[%register+bytes]`.
    fn address(&self, operand: &str) -> Option<(usize, i64)> {
        let inside = operand.strip_prefix('[')?.strip_suffix(']')?;
        let (base, offset) = inside.split_once('+').unwrap_or((inside, "0"));
        Some((self.register(base.trim())?, offset.trim().parse().ok()?))
    }

    fn target(&self) -> Option<usize> {
        self.register(self.operands.first()?)
    }

    fn register(&self, name: &str) -> Option<usize> {
        self.names.registers.get(name).copied()
    }

    /// What follows the target, all of it.
    fn sources<const COUNT: usize>(&self) -> Option<[Operand; COUNT]> {
        let sources = self.operands.iter().skip(1).map(|text| self.value(text));
        sources.collect::<Option<Vec<_>>>()?.try_into().ok()
    }

    fn operand(&self, index: usize) -> Option<Operand> {
        self.value(self.operands.get(index)?)
    }

    fn value(&self, text: &str) -> Option<Operand> {
        let special = match text {
            "%tid.x" => Special::Thread,
            "%ntid.x" => Special::BlockThreads,
            "%ctaid.x" => Special::Block,
            "%nctaid.x" => Special::Blocks,
            _ if text.starts_with('%') => return self.register(text).map(Operand::Register),
            _ => return constant(text).map(Operand::Constant),
        };
        Some(Operand::Special(special))
    }
}

/// Of a load or store of global memory: the elements of the vector, and whether it is seen by the
/// whole system in an order, which one of `orders` is.
fn access(words: &[&str], orders: &[&str]) -> Option<(usize, bool)> {
    match words {
        [order, "sys", "global"] if orders.contains(order) => Some((1, true)),
        ["global"] => Some((1, false)),
        ["global", "v2"] => Some((2, false)),
        ["global", "v4"] => Some((4, false)),
        _ => None,
    }
}

fn compare(word: &str) -> Option<Compare> {
    Some(match word {
        "eq" => Compare::Equal,
        "ne" => Compare::NotEqual,
        "lt" => Compare::Less,
        "le" => Compare::LessOrEqual,
        "gt" => Compare::Greater,
        "ge" => Compare::GreaterOrEqual,
        "nan" => Compare::Unordered,
        _ => return None,
    })
}

fn constant(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse::<i64>().ok().map(i64::cast_unsigned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read() {
        let text = ".version 6.3\n.target sm_70\n// a comment; with {\n.visible .entry twice(\n\
                    .param .u32 count, .param .u64 at)\n{\n.reg .b64 %at; .reg .b32 %w<2>;\n\
                    AGAIN:\n ld.param.u64 %at, [at];\n@!%w0 bra AGAIN;\nret;\n}\n";
        let module = module(text);
        let kernel = &module.kernels["twice"];
        assert_eq!(kernel.parameters, [4, 8]);
        assert_eq!((kernel.registers, kernel.instructions.len()), (3, 3));
        let first = &kernel.instructions[0].what;
        assert!(
            matches!(first, What::LoadParameter { offset: 8, .. }),
            "{first:?}"
        );
        let second = &kernel.instructions[1];
        assert!(matches!(second.guard, Some((1, true))), "{second:?}");
        assert!(matches!(second.what, What::Branch(0)), "{second:?}");
    }

    #[test]
    fn vectors_are_one_operand() {
        assert_eq!(split("{%a, %b}, [%c+4], 7"), ["{%a, %b}", "[%c+4]", "7"]);
        assert_eq!(split(""), [""; 0]);
    }
}
