"""Target slurm: a job for each replica, by sbatch, squeue and scancel of a submit host."""
