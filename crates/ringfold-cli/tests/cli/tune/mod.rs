//! `ringfold tune`: its input, output and files.

mod calibrate;
mod check;
mod optimize;
mod sweep;

use std::path::PathBuf;

use crate::process::{Finished, finish};

/// A folder that is removed on drop.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ringfold-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Folder(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).expect("a file for the test");
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn tune(arguments: &[&str]) -> Finished {
    finish(&[&["tune"], arguments].concat())
}

/// Returns one row for each way and round at each size; `default:` marks the default's picks.
pub fn sweep(times_us: &[(u64, &str, &[f64])]) -> String {
    let mut text = String::from(
        "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,pipeOps,regBuff,asked,round,\
         median_us\n",
    );
    for (bytes, way, rounds) in times_us {
        let (asked, algorithm) = match way.strip_prefix("default:") {
            Some(algorithm) => ("default", algorithm),
            None => ("way", *way),
        };
        for (round, time_us) in rounds.iter().enumerate() {
            text += &format!(
                "all_reduce,{bytes},{algorithm},simple,-1,1,4,1,0,{asked},{round},{time_us}\n"
            );
        }
    }
    text
}
