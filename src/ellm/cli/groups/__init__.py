"""Commands that have commands of their own, a file each: `ellm cache ls`."""
