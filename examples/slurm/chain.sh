# One training through many Slurm jobs, in plain bash. Sourced by train.sbatch and train-array.sbatch in this folder.
#
# The chain's memory is the run directory: `finished` (the flag that the training program creates at its end), `attempts`
# (the ledger: a line for each start and each end), and `chain` (which job trains here). Settable before sourcing:
#   RUN            the run directory, on a filesystem that all nodes see
#   MAX_FAILURES   failures in a row after which it gives up; preemptions and time limits are none
#   MAX_ATTEMPTS   starts in all, whatever their ends
#   NOTICE         seconds before the time limit at which Slurm sends SIGTERM: that of --signal
#
# Works with Slurm from 20.11 on, with or without accounting. Needs bash, awk, flock.

RUN=${RUN:?the run directory}
MAX_FAILURES=${MAX_FAILURES:-3}
MAX_ATTEMPTS=${MAX_ATTEMPTS:-100}
NOTICE=${NOTICE:-180}
CHAIN=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} # all tasks of an array are one chain
# As Slurm's commands name it, a task of an array by its number: 12_3. The job number of one task is that of all.
JOB=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
JOB=${JOB:-$SLURM_JOB_ID}
ATTEMPT=$JOB.${SLURM_RESTART_COUNT:-0}
export FAULT_TOL_FINISHED_FLAG_FILE=$RUN/finished

say() { printf '[chain] %s %s\n' "$(date +%FT%T)" "$*"; }
record() { printf '%s %s %s\n' "$(date +%FT%T)" "$ATTEMPT" "$*" >>"$RUN/attempts"; }

# Whether this job may train in $RUN; ends the job if not.
chain_begin() {
    mkdir -p "$RUN"
    if [[ -e $FAULT_TOL_FINISHED_FLAG_FILE ]]; then
        say "nothing to do: $FAULT_TOL_FINISHED_FLAG_FILE is there"
        exit 0
    fi
    # Found out now, not after hours.
    if [[ -z ${SLURM_ARRAY_JOB_ID:-} && $(scontrol show job "$JOB") == *[[:space:]]Requeue=0* ]]; then
        say "job $JOB may not be requeued (--no-requeue, SBATCH_NO_REQUEUE or the site): nothing is started"
        exit 1
    fi
    _claim
    # SIGTERM reaches this shell too when Slurm ends the job. It must live on, to see to what follows.
    TERM_CAME=
    trap 'TERM_CAME=1' TERM
    # What is not counted could be requeued for ever.
    record "start on $SLURM_JOB_NODELIST" || { say "cannot write $RUN/attempts: nothing is started"; exit 1; }
    HOLDFAST_ATTEMPT=$(grep -c '^[^ ]* [^ ]* start ' "$RUN/attempts") # its number in this run directory
    export HOLDFAST_ATTEMPT
    say "attempt $ATTEMPT on $SLURM_JOB_NODELIST, $(_failures_in_a_row) of $MAX_FAILURES failures in a row so far"
}

# Runs the command to its end, then sees to what follows. In the background, because bash heeds a signal only then.
chain_run() {
    local pid code
    "$@" &
    pid=$!
    while :; do
        while [[ -n $TERM_CAME ]]; do # before the wait, or while the one before was seen to
            TERM_CAME=
            ! _time_is_up || _not_ended
        done
        wait "$pid"
        code=$?
        [[ -n $TERM_CAME ]] || break
    done
    chain_end "$code"
}

# The training has not ended in time, and KillWait seconds from now this shell is killed as well.
_not_ended() {
    record "time-limit (not ended)"
    [[ $(_attempts) -lt $MAX_ATTEMPTS ]] || _over "gave up after $MAX_ATTEMPTS attempts"
    ! _last_task || return 0 # `chain_end` says so, if there is time
    say "attempt $ATTEMPT: the time limit came before its end; the next one follows"
    [[ -n ${SLURM_ARRAY_JOB_ID:-} ]] || _requeue
}

# What follows from how the attempt ended: $1 is srun's exit code. Ends the job.
chain_end() {
    local code=$1 ending
    ending=$(_ending "$code")
    record "$ending ($code)"
    case $ending in
    finished)
        say "finished: the training is complete"
        exit 0
        ;;
    ended-by-slurm)
        # scancel: it is over. Preempted or a node lost: Slurm has requeued the job already. Either way, not our turn.
        say "Slurm is ending this job (cancelled, or requeued by Slurm itself)"
        exit 1
        ;;
    stopped)
        [[ $code != 2 ]] || say "exit code 2: a wrong command line; or no ft_launcher on the nodes (above: execve)"
        _over "ends here: exit code $code says that it must not be started again"
        ;;
    failed)
        local failures
        failures=$(_failures_in_a_row)
        say "attempt $ATTEMPT failed with exit code $code: failure $failures of $MAX_FAILURES in a row"
        [[ $failures -lt $MAX_FAILURES ]] ||
            _over "gave up after $failures failures in a row, the last with exit code $code: its cause is above"
        ;;
    esac
    [[ $(_attempts) -lt $MAX_ATTEMPTS ]] || _over "gave up after $MAX_ATTEMPTS attempts"
    ! _last_task ||
        _over "ends here, not finished: task $SLURM_ARRAY_TASK_ID is the last of the array. To go on, submit it again"
    say "attempt $ATTEMPT: $ending; the next one follows"
    # An array's next task starts by itself.
    [[ -n ${SLURM_ARRAY_JOB_ID:-} ]] || _requeue || exit 1
    exit 0
}

_last_task() { [[ -n ${SLURM_ARRAY_JOB_ID:-} && $SLURM_ARRAY_TASK_ID -ge $SLURM_ARRAY_TASK_MAX ]]; }

# Requeueing ends this shell too, in a moment.
_requeue() {
    local try
    for try in 1 2 3 4 5 6; do
        ! scontrol requeue "$SLURM_JOB_ID" || return 0
        sleep $((try * 5)) # the controller may be restarting
        # A try may have been heard though its answer was lost, and somebody may cancel the job meanwhile.
        [[ $(_ending 1) != ended-by-slurm ]] || return 0
    done
    record "not requeued"
    say "could not requeue; start it again with: scontrol requeue $SLURM_JOB_ID"
    return 1
}

# The chain ends without success: no tool may take that for one, so the exit code is not 0.
_over() {
    record "over: $1"
    say "$1"
    [[ -z ${SLURM_ARRAY_JOB_ID:-} ]] || scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
    exit 1
}

_ending() {
    local state restarts
    state=$(squeue --noheader --jobs="$JOB" --format=%T)
    restarts=$(scontrol show job "$JOB" | grep -o 'Restarts=[0-9]*')
    if [[ $1 == 93 ]]; then
        echo stopped # a rank asked for it; the flag may be there as well
    elif [[ -e $FAULT_TOL_FINISHED_FLAG_FILE ]]; then
        echo finished
    elif [[ -n $restarts && ${restarts#*=} != "${SLURM_RESTART_COUNT:-0}" ]]; then
        # Requeued already: preempted, or a node lost. The next run may even be under way.
        echo ended-by-slurm
    elif [[ -n $state && $state != RUNNING ]] && _time_is_up; then
        echo time-limit
    elif [[ -n $state && $state != RUNNING ]]; then
        # Cancelled. Requeueing would bring it back.
        echo ended-by-slurm
    else
        case $1 in
        137)
            # The launchers were told to stop, and had to kill ranks that did not. Slurm may be 60 s too early.
            if _was_told_to_stop && _time_is_up $((NOTICE + 60)); then echo time-limit; else echo failed; fi
            ;;
        75 | 143) echo preempted ;; # 143: the launcher itself had only just been started
        2 | 130) echo stopped ;;    # a wrong command line, Ctrl-C
        *) echo failed ;;             # also 0: ended without the flag
        esac
    fi
}

# As a journal of this attempt tells; one of its files is one launcher's.
_was_told_to_stop() {
    grep -lZF "\"run_id\":\"$ATTEMPT\"" "$RUN"/journal/journal-*.jsonl 2>/dev/null |
        xargs -0 -r cat | grep -qF '"kind":"preemption"'
}

# Or in $1 seconds. By Slurm's own words, since a limit can be changed while the job runs.
_time_is_up() {
    local facts start limit
    facts=$(scontrol show job "$JOB")
    start=$(grep -o -m 1 '\<StartTime=[^ ]*' <<<"$facts")
    limit=$(grep -o -m 1 '\<TimeLimit=[^ ]*' <<<"$facts")
    [[ ${start#*=} == [0-9]* ]] || return 1 # Unknown: requeued by Slurm, and not started yet
    [[ ${limit#*=} =~ ^(([0-9]+)-)?([0-9]+):([0-9]+):([0-9]+)$ ]] || return 1 # UNLIMITED
    local days=${BASH_REMATCH[2]:-0} hours=${BASH_REMATCH[3]} minutes=${BASH_REMATCH[4]} seconds=${BASH_REMATCH[5]}
    seconds=$((((10#$days * 24 + 10#$hours) * 60 + 10#$minutes) * 60 + 10#$seconds))
    [[ $(($(date +%s) + ${1:-0})) -ge $(($(date +%s -d "${start#*=}") + seconds)) ]]
}

# Only one chain in a run directory. The lock is held for a moment; the claim lasts as long as Slurm knows its job.
_claim() {
    local owner said
    exec 9>>"$RUN/chain.lock"
    flock 9
    owner=$(cat "$RUN/chain" 2>/dev/null)
    if [[ -n $owner && $owner != "$CHAIN" ]]; then
        said=$(squeue --noheader --jobs="$owner" --format=%T 2>&1)
        if [[ -n $said && $said != *"Invalid job id"* ]]; then
            say "refused: job $owner trains in $RUN already ($said). Cancel it first, or use another directory"
            [[ -z ${SLURM_ARRAY_JOB_ID:-} ]] || scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
            exit 1
        fi
    fi
    if [[ $owner != "$CHAIN" ]]; then
        printf '%s\n' "$CHAIN" >"$RUN/chain"
        record "chain $CHAIN"
    fi
    flock -u 9
}

# Of this chain. An attempt that was preempted, or that its time limit ended, was a good one: the row is over.
_failures_in_a_row() {
    awk '$3 == "chain" || $3 == "preempted" || $3 == "time-limit" { n = 0 } $3 == "failed" { n++ } END { print n + 0 }' \
        "$RUN/attempts"
}

_attempts() {
    awk '$3 == "chain" { n = 0 } $3 == "start" { n++ } END { print n + 0 }' "$RUN/attempts"
}
